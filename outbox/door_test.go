package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
)

// entry is an event on its way through a door. headers is the JSON that SQL is given, nil for none.
type entry struct {
	holdfast.Event
	headers *string
}

func (e entry) time() *time.Time {
	if e.Time.IsZero() {
		return nil
	}
	return &e.Time
}

// doors are the ways into the log, each with what it does with an event that has an id.
var doors = map[string]func(ctx context.Context, tx pgx.Tx, e entry) error{
	"outbox.Write": func(ctx context.Context, tx pgx.Tx, e entry) error { return outbox.Write(ctx, tx, e.Event) },
	"outbox.Write of two": func(ctx context.Context, tx pgx.Tx, e entry) error {
		other := good()
		other.ID = "other " + time.Now().String()
		return outbox.Write(ctx, tx, other, e.Event)
	},
	"holdfast.append": func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `select holdfast.append($1, $2, $3, $4, $5, $6, $7, $8, $9, null)`, []string{e.ID}, []string{e.Source}, []string{e.Type}, []string{e.Topic},
			[]string{e.Key}, []*time.Time{e.time()}, []*string{e.headers}, [][]byte{e.Payload}, []*time.Time{nil})
		return err
	},
	"holdfast.append, nothing scheduled": func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `select holdfast.append($1, $2, $3, $4, $5, $6, $7, $8, null, null)`, []string{e.ID}, []string{e.Source}, []string{e.Type}, []string{e.Topic},
			[]string{e.Key}, []*time.Time{e.time()}, []*string{e.headers}, [][]byte{e.Payload})
		return err
	},
	"holdfast.append_one": func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `select holdfast.append_one($1, $2, $3, $4, $5, $6, $7, $8)`, e.ID, e.Source, e.Type, e.Topic, e.Key, e.time(), e.headers, e.Payload)
		return err
	},
	"holdfast.write": func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `select holdfast.write($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8)`, e.Topic, e.Key, e.Type, e.Payload, e.headers, e.Source, e.ID, e.time())
		return err
	},
	"holdfast.write, scheduled": func(ctx context.Context, tx pgx.Tx, e entry) error {
		_, err := tx.Exec(ctx, `select holdfast.write($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, not_before => now() + interval '1 hour')`, e.Topic, e.Key, e.Type, e.Payload, e.headers, e.Source, e.ID, e.time())
		return err
	},
}

// try sends an event through a door in a transaction that is rolled back, and says what the door said.
func try(t *testing.T, db *pgtest.DB, door string, e entry) error {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	return doors[door](t.Context(), tx, e)
}

// refusedForItself says whether a door refused the event, rather than failed.
func refusedForItself(err error) bool {
	var limit *outbox.LimitError
	var pgErr *pgconn.PgError
	return errors.As(err, &limit) || errors.As(err, &pgErr) && pgErr.Code == "22023" && strings.HasPrefix(pgErr.Message, "write event: ")
}

func TestDoor_EveryDoorHasTheSameLimits(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := setup(t)
	headers := func(count, bytes int) map[string]string { // bytes of each name and its value
		all := map[string]string{}
		for i := range count {
			name := fmt.Sprintf("h%03d", i)
			all[name] = strings.Repeat("x", bytes-len(name))
		}
		return all
	}
	one := func(name, value string) func(e *holdfast.Event) {
		return func(e *holdfast.Event) { e.Headers = map[string]string{name: value} }
	}
	const letIn, refused = true, false
	for _, c := range []struct {
		name   string
		change func(e *holdfast.Event)
		want   bool
	}{
		{"as it is", func(*holdfast.Event) {}, letIn},
		{"an id of 255 bytes", func(e *holdfast.Event) { e.ID = strings.Repeat("i", 255) }, letIn},
		{"an id of 256", func(e *holdfast.Event) { e.ID = strings.Repeat("i", 256) }, refused},
		{"an id of 255 letters and more bytes", func(e *holdfast.Event) { e.ID = strings.Repeat("ä", 255) }, refused},
		{"a source of 255 bytes", func(e *holdfast.Event) { e.Source = strings.Repeat("s", 255) }, letIn},
		{"a source of 256", func(e *holdfast.Event) { e.Source = strings.Repeat("s", 256) }, refused},
		{"no type", func(e *holdfast.Event) { e.Type = "" }, refused},
		{"a type of 255 bytes", func(e *holdfast.Event) { e.Type = strings.Repeat("t", 255) }, letIn},
		{"a type of 256", func(e *holdfast.Event) { e.Type = strings.Repeat("t", 256) }, refused},
		{"no topic", func(e *holdfast.Event) { e.Topic = "" }, refused},
		{"a topic of 249 bytes", func(e *holdfast.Event) { e.Topic = strings.Repeat("t", 249) }, letIn},
		{"a topic of 250", func(e *holdfast.Event) { e.Topic = strings.Repeat("t", 250) }, refused},
		{"a topic of all that Kafka allows", func(e *holdfast.Event) { e.Topic = "aZ09._-" }, letIn},
		{"a topic with a space", func(e *holdfast.Event) { e.Topic = "a b" }, refused},
		{"a topic with a line break", func(e *holdfast.Event) { e.Topic = "a\n" }, refused},
		{"a topic with an umlaut", func(e *holdfast.Event) { e.Topic = "ä" }, refused},
		{"a topic of a dot", func(e *holdfast.Event) { e.Topic = "." }, refused},
		{"a topic of two dots", func(e *holdfast.Event) { e.Topic = ".." }, refused},
		{"a topic of three dots", func(e *holdfast.Event) { e.Topic = "..." }, letIn},
		{"no key", func(e *holdfast.Event) { e.Key = "" }, letIn},
		{"a key of 1,024 bytes", func(e *holdfast.Event) { e.Key = strings.Repeat("k", 1024) }, letIn},
		{"a key of 1,025", func(e *holdfast.Event) { e.Key = strings.Repeat("k", 1025) }, refused},
		{"no payload", func(e *holdfast.Event) { e.Payload = nil }, letIn},
		{"the largest payload", func(e *holdfast.Event) { e.Payload = make([]byte, defaultMaxPayload) }, letIn},
		{"a payload one byte larger", func(e *holdfast.Event) { e.Payload = make([]byte, defaultMaxPayload+1) }, refused},
		{"a payload that shrinks on disk", func(e *holdfast.Event) { e.Payload = make([]byte, 30<<20) }, refused},
		{"a time in the year 1", func(e *holdfast.Event) { e.Time = time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC) }, letIn},
		{"a time in the year 0", func(e *holdfast.Event) { e.Time = time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC) }, refused},
		{"a time that is in the year 0 in UTC", func(e *holdfast.Event) { e.Time = time.Date(1, 1, 1, 0, 30, 0, 0, time.FixedZone("", 3600)) }, refused},
		{"a time at the end of the year 9999", func(e *holdfast.Event) { e.Time = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }, letIn},
		{"a time in the year 10000", func(e *holdfast.Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, refused},
		{"a time that is in the year 10000 in UTC", func(e *holdfast.Event) { e.Time = time.Date(9999, 12, 31, 23, 30, 0, 0, time.FixedZone("", -3600)) }, refused},
		{"a header", one("traceparent", "x"), letIn},
		{"a header of every character of a token", one("!#$%&'*+-.^_`|~09azAZ", ""), letIn},
		{"a header without a name", one("", "x"), refused},
		{"a header name of 255 bytes", one(strings.Repeat("n", 255), ""), letIn},
		{"a header name of 256", one(strings.Repeat("n", 256), ""), refused},
		{"a header name with a space", one("a b", ""), refused},
		{"a header name with a line break", one("a\r\nb", ""), refused},
		{"a header name that ends with a line break", one("a\n", ""), refused},
		{"a header name with a colon", one("a:b", ""), refused},
		{"a header name with an umlaut", one("ä", ""), refused},
		{"a header of CloudEvents", one("ce_id", "x"), refused},
		{"a header of CloudEvents in upper case", one("CE_id", "x"), refused},
		{"a header of holdfast", one("hf_letter", "1"), refused},
		{"a header of holdfast in another case", one("Hf_x", "1"), refused},
		{"a header that only looks reserved", one("ce-id", "x"), letIn},
		{"64 headers", func(e *holdfast.Event) { e.Headers = headers(64, 10) }, letIn},
		{"65 headers", func(e *holdfast.Event) { e.Headers = headers(65, 10) }, refused},
		{"8,192 bytes of headers", func(e *holdfast.Event) { e.Headers = headers(2, 4096) }, letIn},
		{"8,193 bytes of headers", func(e *holdfast.Event) { e.Headers = headers(2, 4096); e.Headers["h000"] += "x" }, refused},
		{"8,192 bytes of headers, each escaped", one("h", strings.Repeat("\x01", 8191)), letIn},
		{"8,192 bytes of headers in umlauts", one("hh", strings.Repeat("ä", 4095)), letIn},
		{"more bytes in fewer letters", one("hh", strings.Repeat("ä", 4096)), refused},
	} {
		e := entry{Event: good()}
		e.ID = "1"
		c.change(&e.Event)
		if e.Headers != nil {
			text, err := json.Marshal(e.Headers)
			if err != nil {
				t.Fatal(err)
			}
			e.headers = new(string)
			*e.headers = string(text)
		}
		for door := range doors {
			err := try(t, db, door, e)
			if (err == nil) != c.want {
				t.Errorf("%s, %s: got %v, want it let in: %v", c.name, door, err, c.want)
			}
			if err != nil && !refusedForItself(err) {
				t.Errorf("%s, %s: %v is no refusal", c.name, door, err)
			}
		}
	}
}

// Go cannot write these: Event.Headers is a map of strings.
func TestDoor_HeadersThatOnlySQLCanWriteAreRefused(t *testing.T) {
	t.Parallel()
	db := setup(t)
	for name, headers := range map[string]string{
		"no object":         `["a"]`,
		"a text":            `"a"`,
		"null":              `null`,
		"a number in it":    `{"a": 1}`,
		"null in it":        `{"a": null}`,
		"an object in it":   `{"a": {"b": "c"}}`,
		"deeply nested":     `{"a": ` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}`,
		"too large to look": `{"a": "` + strings.Repeat(`\u0061`, 20_000) + `"}`,
		"much white space":  `{"a": ` + strings.Repeat(" ", 100_000) + `""}`,
	} {
		for door := range doors {
			if strings.HasPrefix(door, "outbox.") || strings.Contains(door, "write") && (name == "too large to look" || name == "much white space") {
				continue // write takes jsonb: white space and escapes are gone
			}
			e := entry{Event: good(), headers: &headers}
			e.ID = "1"
			if err := try(t, db, door, e); !refusedForItself(err) {
				t.Errorf("%s, %s: got %v, want a refusal", name, door, err)
			}
		}
	}
	for _, sql := range []string{
		`select holdfast.append(array_fill('1'::text, array[10001]), array_fill(''::text, array[10001]), array_fill('t'::text, array[10001]), array_fill('o'::text, array[10001]),
			array_fill(''::text, array[10001]), null, null, null, null, null)`,
		`select holdfast.write('o', '', 't', '', not_before => 'infinity')`,
		`select holdfast.write('o', '', 't', '', not_before => '10000-01-01 00:00:00+00')`,
		`select holdfast.write('o', '', 't', '', "time" => '-infinity')`,
	} {
		if _, err := db.Exec(t.Context(), sql); !refusedForItself(err) {
			t.Errorf("%.80s: got %v, want a refusal", sql, err)
		}
	}
}

func TestDoor_TheLimitOfPayloadsIsTheInstallations(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	limited := func(c holdfast.SchemaConfig) {
		t.Helper()
		if err := holdfast.Migrate(t.Context(), db.Pool, c); err != nil {
			t.Fatal(err)
		}
		if err := holdfast.Check(t.Context(), db.Pool, c); err != nil {
			t.Error(err)
		}
	}
	unlimited, err := outbox.New(outbox.Config{MaxPayload: -1})
	if err != nil {
		t.Fatal(err)
	}
	tx := func(payload int) error {
		e := good()
		e.Payload = make([]byte, payload)
		return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return unlimited.Write(t.Context(), tx, e) })
	}
	for _, c := range []struct{ configured, limit int }{{100, 100}, {0, 100}, {2 << 20, 2 << 20}, {defaultMaxPayload, defaultMaxPayload}} {
		limited(holdfast.SchemaConfig{MaxPayload: c.configured})
		if err := tx(c.limit); err != nil {
			t.Errorf("%d: %v", c.configured, err)
		}
		want := fmt.Sprintf("payload has %d bytes: at most %d (holdfast migrate --max-payload)", c.limit+1, c.limit)
		if err := tx(c.limit + 1); !refusedForItself(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: got %v, want %q", c.configured, err, want)
		}
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{MaxPayload: 7}); err == nil || !strings.Contains(err.Error(), "max payload is 7") {
		t.Errorf("Check says %v", err)
	}
	for _, limit := range []int{-1, 64<<20 + 1} {
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{MaxPayload: limit}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("max payload is %d: it must be between", limit)) {
			t.Errorf("%d: %v", limit, err)
		}
	}
}

// A writer's own now() is not in the future: the event is written, and once.
func TestDoor_AnEventThatIsDueAtTheTimeOfItsTransactionIsInTheLog(t *testing.T) {
	t.Parallel()
	db := setup(t)
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', '', not_before => now())")
	if log, scheduled := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event"), pgtest.Count(t, db.Pool, "select count(*) from holdfast.scheduled"); log != 1 || scheduled != 0 {
		t.Errorf("the log has %d events, and %d are scheduled", log, scheduled)
	}
}
