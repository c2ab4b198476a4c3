package outbox_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// defaultMaxPayload is what outbox.Config.MaxPayload defaults to.
const defaultMaxPayload = 1<<20 - 16<<10

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func setup(t testing.TB) *pgtest.DB {
	t.Helper()
	db := migrated.New(t)
	return db
}

func good() holdfast.Event {
	return holdfast.Event{Topic: "orders", Type: "order.placed", Key: "k", Payload: []byte("{}")}
}

func TestOutbox_WriteMakesOneRoundTripHoweverManyEvents(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var mu sync.Mutex
	queries := 0
	pool := db.PoolWith(t, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = tracer(func(sql string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(sql, "outbox.append") {
				queries++
			}
		})
	})
	events := make([]holdfast.Event, 10_000)
	for i := range events {
		events[i] = good()
		events[i].Payload = []byte(fmt.Sprint(i))
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
	if queries != 1 {
		t.Errorf("%d statements, want 1", queries)
	}
	inOrder := pgtest.Count(t, db.Pool, "select count(*) from (select seq > lag(seq) over (order by convert_from(payload, 'UTF8')::int) as ascends from holdfast.event) e where ascends")
	if inOrder != 9_999 {
		t.Errorf("%d of 9,999 neighbours ascend: the order of the call was not kept", inOrder)
	}
}

type tracer func(sql string)

func (tr tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr(data.SQL)
	return ctx
}
func (tr tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

var execModes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

func TestOutbox_WriteWorksInEveryExecModeOfPgx(t *testing.T) {
	t.Parallel()
	db := setup(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			full := good()
			full.ID, full.Headers, full.Payload = "id "+mode.String(), map[string]string{"a": `quote " and \ and '`}, []byte{0, '\\', 0xff, '\''}
			full.Time, full.NotBefore = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("x", 3600)), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			tombstone := good()
			tombstone.ID, tombstone.Payload = "tombstone "+mode.String(), nil
			if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				if err := outbox.Lock(t.Context(), tx, "b", "a'\\"); err != nil {
					return err
				}
				return outbox.Write(t.Context(), tx, full, tombstone)
			}); err != nil {
				t.Fatal(err)
			}
			var payload []byte
			var header string
			var at time.Time
			if err := db.QueryRow(t.Context(), "select payload, headers ->> 'a', time from holdfast.event where id = $1", full.ID).Scan(&payload, &header, &at); err != nil {
				t.Fatal(err)
			}
			if string(payload) != string(full.Payload) || header != full.Headers["a"] || !at.Equal(full.Time) {
				t.Errorf("got %q, %q, %v", payload, header, at)
			}
			if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where id = $1 and payload is null and headers is null", tombstone.ID); n != 1 {
				t.Error("the tombstone was not written as null")
			}
		})
	}
}

// problemForm is the one form of every refusal: field, value and rule.
var problemForm = regexp.MustCompile(`^write events: event \d+: [a-z].* is .*: it must `)

func TestOutbox_AnEventOutsideTheLimitsIsRefusedWithFieldValueAndRule(t *testing.T) {
	t.Parallel()
	db := setup(t)
	change := func(f func(e *holdfast.Event)) holdfast.Event { e := good(); f(&e); return e }
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("h", i)] = ""
	}
	for _, c := range []struct {
		name  string
		event holdfast.Event
		want  []string
	}{
		{"no topic", change(func(e *holdfast.Event) { e.Topic = "" }), []string{"topic is empty: it must be 1 to 249 bytes"}},
		{"a topic that Kafka refuses", change(func(e *holdfast.Event) { e.Topic = "or ders" }), []string{"topic", "or ders", "Kafka"}},
		{"a topic of dots", change(func(e *holdfast.Event) { e.Topic = ".." }), []string{"topic", `".."`}},
		{"a long topic", change(func(e *holdfast.Event) { e.Topic = strings.Repeat("t", 250) }), []string{"topic is 250 bytes long: it must be at most 249"}},
		{"no type", change(func(e *holdfast.Event) { e.Type = "" }), []string{"type", "empty"}},
		{"a key that is not UTF-8", change(func(e *holdfast.Event) { e.Key = "a\xff" }), []string{"key", "UTF-8"}},
		{"a key with NUL", change(func(e *holdfast.Event) { e.Key = "a\x00b" }), []string{"key", "NUL"}},
		{"a long key", change(func(e *holdfast.Event) { e.Key = strings.Repeat("k", 1025) }), []string{"key", "1025 bytes", "1024"}},
		{"a long id", change(func(e *holdfast.Event) { e.ID = strings.Repeat("i", 256) }), []string{"id", "256 bytes", "255"}},
		{"a long source", change(func(e *holdfast.Event) { e.Source = strings.Repeat("i", 256) }), []string{"source", "256 bytes", "255"}},
		{"a payload one byte too large", change(func(e *holdfast.Event) { e.Payload = make([]byte, defaultMaxPayload+1) }), []string{"payload", "1032193 bytes", "1032192"}},
		{"a header name with a space", change(func(e *holdfast.Event) { e.Headers = map[string]string{"a b": ""} }), []string{"header", "a b", "token"}},
		{"a header name with a line break", change(func(e *holdfast.Event) { e.Headers = map[string]string{"a\r\nb": ""} }), []string{"header", "token"}},
		{"a reserved header", change(func(e *holdfast.Event) { e.Headers = map[string]string{"CE_id": "x"} }), []string{"CE_id", "reserved"}},
		{"a header value that is not UTF-8", change(func(e *holdfast.Event) { e.Headers = map[string]string{"a": "secret\xff"} }), []string{`header "a"`, "UTF-8"}},
		{"too many headers", change(func(e *holdfast.Event) { e.Headers = many }), []string{"number of headers", "65", "64"}},
		{"too large headers", change(func(e *holdfast.Event) { e.Headers = map[string]string{"a": strings.Repeat("x", 8192)} }), []string{"headers", "8193", "8192"}},
		{"a time in the year 10000", change(func(e *holdfast.Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }), []string{"time", "10000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
				err := outbox.Write(t.Context(), tx, good(), c.event)
				var limit *outbox.LimitError
				if !errors.As(err, &limit) || limit.Index != 1 {
					t.Errorf("got %v, want a LimitError about event 1", err)
				}
				if err != nil && !problemForm.MatchString(err.Error()) {
					t.Errorf("%q: want field, value and rule", err)
				}
				for _, want := range append(c.want, "event 1") {
					if err != nil && !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not say %q", err, want)
					}
				}
				if err != nil && strings.Contains(err.Error(), "secret") {
					t.Errorf("%q holds a header's value", err)
				}
				return outbox.Write(t.Context(), tx, good()) // the transaction is still usable
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event"); n != 18 {
		t.Errorf("%d events, want the 18 good ones: nothing of a refused call may be written", n)
	}
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, make([]holdfast.Event, 10_001)...)
	})
	if err == nil || !strings.Contains(err.Error(), "10001") || !strings.Contains(err.Error(), "at most 10000") {
		t.Errorf("got %v for 10,001 events", err)
	}
}

func TestOutbox_TheLargestEventWithinTheLimitsIsWritten(t *testing.T) {
	t.Parallel()
	db := setup(t)
	e := holdfast.Event{ID: strings.Repeat("i", 255), Source: strings.Repeat("s", 255), Type: strings.Repeat("t", 255), Topic: strings.Repeat("t", 249),
		Key: strings.Repeat("k", 1024), Payload: make([]byte, defaultMaxPayload), Headers: map[string]string{"a": strings.Repeat("x", 8191)}}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, e) }); err != nil {
		t.Fatal(err)
	}
}

func TestOutbox_NewNamesEveryProblemOfTheConfiguration(t *testing.T) {
	t.Parallel()
	_, err := outbox.New(outbox.Config{Schema: "No;", Source: strings.Repeat("x", 256), MaxPayload: -2})
	for _, want := range []string{`schema is "No;"`, "source is 256 bytes", "max payload is -2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestOutbox_WithoutTheSchemaWriteSaysWhatToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, good()) })
	if !errors.Is(err, holdfast.ErrSchemaMissing) || !strings.Contains(err.Error(), "holdfast migrate") {
		t.Errorf("got %v", err)
	}
}

func TestOutbox_LockMakesASecondTransactionOfTheKeyWait(t *testing.T) {
	t.Parallel()
	db := setup(t)
	first, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Rollback(context.Background())
	if err := outbox.Lock(t.Context(), first, "a", "b"); err != nil {
		t.Fatal(err)
	}
	locked := func(key string) bool {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		pgtest.Exec(t, tx, "set local lock_timeout = '100ms'")
		return outbox.Lock(t.Context(), tx, key) != nil
	}
	if !locked("a") || !locked("b") {
		t.Error("a key that another transaction has locked was to be had")
	}
	if locked("c") {
		t.Error("another key had to wait")
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if locked("a") {
		t.Error("the lock outlived its transaction")
	}
	for name, keys := range map[string][]string{"empty": {"a", ""}, "not UTF-8": {"\xff"}} {
		err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Lock(t.Context(), tx, keys...) })
		if err == nil {
			t.Errorf("locking a key that is %s is no error", name)
		}
	}
}

func TestOutbox_TransactionsThatLockTheSameKeysInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := setup(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			keys := []string{"a", "b", "c", "d"}
			if i%2 == 1 {
				keys = []string{"d", "c", "b", "a"}
			}
			for range 20 {
				if err := pgx.BeginFunc(context.Background(), db.Pool, func(tx pgx.Tx) error { return outbox.Lock(context.Background(), tx, keys...) }); err != nil {
					t.Errorf("lock: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestOutbox_GoAndSQLAgreeOnLanesAndLocks(t *testing.T) {
	t.Parallel()
	db := setup(t)
	for _, key := range []string{"k", "order-1", "Ünïcödé ☃", strings.Repeat("x", 1024), `\`, `'`} {
		for _, lanes := range []int{1, 7, 8, 256} {
			if got, want := pgtest.Count(t, db.Pool, "select holdfast.lane_of($1, 'id', $2)", key, lanes), int64(lane.Of(key, "id", lanes)); got != want {
				t.Errorf("lane of %.20q among %d: SQL says %d, Go %d", key, lanes, got, want)
			}
		}
		if got, want := pgtest.Count(t, db.Pool, "select holdfast.lock_number($1)", key), int64(lane.LockNumber(key)); got != want {
			t.Errorf("lock number of %.20q: SQL says %d, Go %d", key, got, want)
		}
	}
	// Golden vectors: a change of these moves keys between lanes and loses their order.
	for _, g := range []struct {
		key, id string
		lane    int
		lock    int32
	}{{"order-1", "", 1, 1456630156}, {"", "018f-1", 2, 0}} {
		if got := lane.Of(g.key, g.id, 8); got != g.lane {
			t.Errorf("lane.Of(%q, %q, 8) = %d, want %d for ever", g.key, g.id, got, g.lane)
		}
		if g.key != "" && lane.LockNumber(g.key) != g.lock {
			t.Errorf("lane.LockNumber(%q) = %d, want %d for ever", g.key, lane.LockNumber(g.key), g.lock)
		}
	}
}

func TestOutbox_TheSQLDoorWritesWithTheSameLimits(t *testing.T) {
	t.Parallel()
	db := setup(t)
	pgtest.Exec(t, db.Pool, `select holdfast.write('orders', 'k', 'order.placed', '{"a": 1}', headers => '{"traceparent": "x"}', source => 'legacy')`)
	if n := pgtest.Count(t, db.Pool, `select count(*) from holdfast.event where topic = 'orders' and key = 'k' and source = 'legacy' and headers ->> 'traceparent' = 'x' and payload = '{"a": 1}' and id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'`); n != 1 {
		t.Error("the event is not as it was written, or its id is no UUIDv7")
	}
	for call, want := range map[string]string{
		`holdfast.write('', 'k', 't', '')`:                                                                                              "topic is empty",
		`holdfast.write('a b', 'k', 't', '')`:                                                                                           "topic is 'a b': at most 249",
		`holdfast.write('o', 'k', '', '')`:                                                                                              "type is empty",
		`holdfast.write('o', 'k', 't', '', id => repeat('x', 256))`:                                                                     "id has 256 bytes",
		`holdfast.write('o', 'k', 't', '', headers => '[]')`:                                                                            "headers is a JSON array",
		`holdfast.write('o', 'k', 't', '', headers => '{"a": 1}')`:                                                                      "header a is a JSON number",
		`holdfast.write('o', 'k', 't', '', headers => '{"a b": "1"}')`:                                                                  "not an HTTP token",
		`holdfast.write('o', 'k', 't', '', headers => '{"ce_id": "1"}')`:                                                                "reserved",
		`holdfast.write('o', repeat('k', 1025), 't', '')`:                                                                               "key has 1025 bytes: at most 1024",
		`holdfast.write('a b', 'k', 't', '', not_before => now() + interval '1 hour')`:                                                  "topic is 'a b': at most 249",
		`holdfast.append(array['1', '2'], array['', ''], array['t', ''], array['o', 'o'], array['', ''], null, null, null, null, null)`: "type is empty",
		`holdfast.append_one('1', '', '', 'o', '', null, null, '')`:                                                                     "type is empty",
		`holdfast.lock('a', '')`:                                                                                                        "key is empty",
	} {
		if _, err := db.Exec(t.Context(), "select "+call); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", call, err, want)
		}
	}
}

func TestOutbox_EveryDoorLeadsToTheCurrentSegment(t *testing.T) {
	t.Parallel()
	db := setup(t)
	for segment := range 4 {
		pgtest.Exec(t, db.Pool, "update holdfast.segments set current = $1", segment)
		for _, events := range [][]holdfast.Event{{good()}, {good(), good()}} {
			if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
				t.Fatal(err)
			}
		}
		pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 'order.placed', '')")
		if n := pgtest.Count(t, db.Pool, fmt.Sprintf("select count(*) from holdfast.event_%d where lane = holdfast.lane_of(key, id, holdfast.lanes())", segment)); n != 4 {
			t.Errorf("segment %d has %d events in their lanes, want 4", segment, n)
		}
	}
}

func TestOutbox_AWriterCannotChooseItsPlaceInTheLog(t *testing.T) {
	t.Parallel()
	db := setup(t)
	role := "writer_" + strings.ToLower(rand.Text())
	pgtest.Exec(t, db.Pool, "create role "+role)
	t.Cleanup(func() {
		db.Exec(context.Background(), "drop owned by "+role)
		db.Exec(context.Background(), "drop role "+role)
	})
	pgtest.Exec(t, db.Pool, "grant usage on schema holdfast to "+role)
	pgtest.Exec(t, db.Pool, "grant execute on function holdfast.append, holdfast.append_one, holdfast.write, holdfast.lock, holdfast.new_id, holdfast.lane_of, holdfast.lock_number to "+role)
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		pgtest.Exec(t, tx, "set local role "+role)
		if err := outbox.Lock(t.Context(), tx, "k"); err != nil {
			return err
		}
		if err := outbox.Write(t.Context(), tx, good()); err != nil {
			return err
		}
		for _, forbidden := range []string{
			"insert into holdfast.event_0 (xid, seq, lane, id, type, topic) values ('3', 1, 0, 'x', 't', 'o')",
			"insert into holdfast.scheduled (lane, due_at, id, type, topic, time) values (0, now(), 'x', 't', 'o', now())",
			"select nextval('holdfast.event_seq')",
			"select payload from holdfast.event",
			"update holdfast.lane set pos = 0",
			"select holdfast.reclaim(1, gen_random_uuid(), 1)",
		} {
			sp, err := tx.Begin(t.Context())
			if err != nil {
				return err
			}
			if _, err := sp.Exec(t.Context(), forbidden); err == nil || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s: got %v, want permission denied", forbidden, err)
			}
			sp.Rollback(t.Context())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOutbox_AProducerLinksPgxAndAUUIDLibraryOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "github.com/holdfast-go/holdfast/outbox").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		allowed := false
		for _, prefix := range []string{"github.com/holdfast-go/holdfast", "github.com/jackc/", "github.com/google/uuid", "golang.org/x/text", "golang.org/x/sync"} {
			allowed = allowed || strings.HasPrefix(dep, prefix)
		}
		if !allowed {
			t.Errorf("outbox links %s: a producer links pgx and a UUID library, nothing else", dep)
		}
	}
}
