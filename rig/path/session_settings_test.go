package path

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

// published is a publisher that refuses what bad says, and keeps the rest.
type published struct {
	mu     sync.Mutex
	bad    map[string]bool // ids
	events []holdfast.Event
}

func (p *published) Publish(_ context.Context, events []holdfast.Event) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := make([]error, len(events))
	for i, e := range events {
		if p.bad[e.ID] {
			answers[i] = retry.Permanent(errors.New("refused"))
		} else {
			p.events = append(p.events, e)
		}
	}
	return answers
}

func (p *published) all() []holdfast.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

// modes are pgx's.
var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

// A role or a database may have any setting, and what it says is nobody's row: the whole path works, in each of pgx's modes.
func TestSessionSettings_NoSettingOfASessionIsInTheWayOfAnEvent(t *testing.T) {
	t.Parallel()
	for _, settings := range []map[string]string{
		{"datestyle": "German"}, {"datestyle": "SQL, DMY", "timezone": "Asia/Kolkata", "intervalstyle": "iso_8601"}, {"datestyle": "Postgres, MDY"},
		{"bytea_output": "escape"}, {"array_nulls": "off"}, {"intervalstyle": "sql_standard"}, {"timezone": "America/St_Johns"}, {"extra_float_digits": "-15"},
		{"xmlbinary": "hex", "quote_all_identifiers": "on", "lc_monetary": "C"}, {"search_path": ""}, {"default_transaction_deferrable": "on", "row_security": "off"},
		{"backslash_quote": "off", "escape_string_warning": "off", "transform_null_equals": "on"}, {"standard_conforming_strings": "off"},
	} {
		for _, mode := range modes {
			name := fmt.Sprint(slices.Sorted(maps.Keys(settings)), slices.Sorted(maps.Values(settings)), " ", mode)
			t.Run(name, func(t *testing.T) {
				if _, off := settings["standard_conforming_strings"]; off && mode == pgx.QueryExecModeSimpleProtocol {
					return // pgx itself refuses it, and says so
				}
				if settings["datestyle"] != "German" || mode != pgx.QueryExecModeExec {
					skip.InShort(t, "one of many combinations")
				}
				t.Parallel()
				t.Run("shared", func(t *testing.T) {
					t.Parallel()
					theWholePath(t, migrated.New(t), settings, mode)
				})
				t.Run(pgtest.Image, func(t *testing.T) {
					skip.InShort(t, "one of many combinations")
					t.Parallel()
					db := pgtest.Container(t, pgtest.Image)
					if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
						t.Fatal(err)
					}
					theWholePath(t, db, settings, mode)
				})
			})
		}
	}
}

func theWholePath(t *testing.T, db *pgtest.DB, settings map[string]string, mode pgx.QueryExecMode) {
	pool := db.PoolWith(t, func(c *pgxpool.Config) {
		maps.Copy(c.ConnConfig.RuntimeParams, settings)
		c.ConnConfig.DefaultQueryExecMode = mode
	})
	ctx := t.Context()
	quiet := slog.New(slog.DiscardHandler)
	at := time.Date(2024, 2, 3, 4, 5, 6, 789012000, time.UTC)
	raw := []byte("\x00\\x\\001\xff{\"a\": null}")
	one := holdfast.Event{ID: "one", Topic: "orders", Key: "k", Type: "placed", Time: at, Headers: map[string]string{"a": "b"}, Payload: raw}
	several := []holdfast.Event{
		{ID: "plain", Topic: "orders", Key: "k", Type: "placed", Payload: []byte{}},
		{ID: "tombstone", Topic: "orders", Key: "k", Type: "placed", Time: at, Headers: map[string]string{"c": "d"}},
		{ID: "bad", Topic: "orders", Key: "l", Type: "placed", Time: at, Payload: raw},
		{ID: "later", Topic: "orders", Key: "m", Type: "placed", Payload: raw, NotBefore: time.Now().Add(-time.Hour)},
		{ID: "never", Topic: "orders", Key: "n", Type: "placed", Payload: raw, NotBefore: at.AddDate(1000, 0, 0)},
	}

	// 1. The outbox writes everything, or says what is wrong. A transaction of a user keeps its settings.
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := outbox.Write(ctx, tx, one); err != nil {
			return err
		}
		if err := outbox.Write(ctx, tx, several...); err != nil {
			return err
		}
		for name, want := range settings {
			var got string
			if err := tx.QueryRow(ctx, "select current_setting($1)", name).Scan(&got); err != nil || !strings.EqualFold(strings.Split(got, ",")[0], strings.Split(want, ",")[0]) && want != "" {
				t.Errorf("the setting %s of the transaction is %q, it was %q: %v", name, got, want, err)
			}
		}
		return nil
	})
	refusing := map[string]string{}
	texts := mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol
	if settings["standard_conforming_strings"] == "off" {
		refusing["standard_conforming_strings"] = "it must be on"
	}
	if settings["array_nulls"] == "off" && texts {
		refusing["array_nulls"] = "it must be on"
	}
	for name, rule := range refusing {
		if err == nil || !strings.Contains(err.Error(), name+" is off") || !strings.Contains(err.Error(), rule) {
			t.Fatalf("Write says %v, want %s and the rule", err, name)
		}
		err = pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			return outbox.Write(ctx, tx, append(several[:len(several):len(several)], one)...)
		})
	}
	if err != nil {
		t.Fatal(err)
	}

	// 2. The relay publishes it. What is refused is a letter, and is replayed.
	p := &published{bad: map[string]bool{"bad": true}}
	r, err := relay.New(pool, p, relay.Config{Logger: quiet, Retry: retry.Policy{Attempts: 1, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(running) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	}()
	letters, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	room, err := waiting.New(pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var open []dlq.Letter
	wait.Until(t, "four events are published, and one is a letter", func() bool {
		if open, err = letters.List(ctx, dlq.Filter{}); err != nil {
			t.Fatal(err)
		}
		return len(p.all()) >= 4 && len(open) > 0
	})
	if len(open) != 1 || open[0].Event.ID != "bad" || !open[0].Event.Time.Equal(at) || !bytes.Equal(open[0].Event.Payload, raw) || time.Since(open[0].FirstAt).Abs() > time.Hour {
		t.Errorf("the letters are %+v", open)
	}
	p.mu.Lock()
	p.bad = nil
	p.mu.Unlock()
	if n, err := letters.Replay(ctx, dlq.Filter{IDs: []int64{open[0].ID}}, dlq.ReplayOptions{By: "ann", Reason: "repaired"}); err != nil || n != 1 {
		t.Fatalf("replayed %d: %v", n, err)
	}
	wait.Until(t, "the letter is published", func() bool { return len(p.all()) == 5 })
	for _, e := range p.all() {
		var want holdfast.Event
		for _, w := range append(several[:len(several):len(several)], one) {
			if w.ID == e.ID {
				want = w
			}
		}
		if !bytes.Equal(e.Payload, want.Payload) || (e.Payload == nil) != (want.Payload == nil) || !want.Time.IsZero() && !e.Time.Equal(want.Time) || !maps.Equal(e.Headers, want.Headers) && len(want.Headers) > 0 {
			t.Errorf("%s was published as %+v, written was %+v", e.ID, e, want)
		}
	}
	scheduled, err := room.List(ctx, waiting.Filter{Why: waiting.Scheduled, Topic: "orders"})
	if err != nil || len(scheduled) != 1 || !scheduled[0].Event.NotBefore.Equal(at.AddDate(1000, 0, 0)) {
		t.Errorf("scheduled are %+v, %v", scheduled, err)
	}

	// 3. The inbox handles and stores, knows what it had, and tells conflicts.
	fails := true
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing", Logger: quiet, Retry: retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	handled := map[string]holdfast.Event{}
	in.Handle("placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		for name, want := range settings {
			var got string
			if err := tx.QueryRow(ctx, "select current_setting($1)", name).Scan(&got); err != nil || !strings.EqualFold(strings.Split(got, ",")[0], strings.Split(want, ",")[0]) && want != "" {
				t.Errorf("the setting %s of the handler is %q, that of the role is %q: %v", name, got, want, err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if e.ID == "bad" && fails {
			fails = false
			return errors.New("not now")
		}
		handled[e.ID] = e
		return nil
	})
	receive := func(e holdfast.Event, want inbox.Outcome) {
		t.Helper()
		if got, err := in.Receive(ctx, e); err != nil || got != want {
			t.Errorf("%s is %s, want %s: %v", e.ID, got, want, err)
		}
	}
	receive(one, inbox.Handled)
	receive(one, inbox.Duplicate)
	other := one
	other.Payload = []byte("another")
	receive(other, inbox.Conflict)
	for _, e := range several[:4] {
		e.NotBefore = time.Time{}
		if got, err := in.Store(ctx, e); err != nil || got != inbox.Stored {
			t.Errorf("%s is %s: %v", e.ID, got, err)
		}
	}
	if stored, err := room.List(ctx, waiting.Filter{Consumer: "billing"}); err != nil || len(stored) != 4 || time.Since(stored[0].Since).Abs() > time.Hour {
		t.Errorf("%d are stored, want 4 of now: %+v, %v", len(stored), stored, err)
	}
	consuming := make(chan error, 1)
	go func() { consuming <- in.Run(running) }()
	defer func() {
		stop()
		if err := <-consuming; err != nil {
			t.Errorf("the inbox ended: %v", err)
		}
	}()
	wait.Until(t, "what is stored is handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == 5 })
	for _, want := range append(several[:4:4], one) {
		if e := handled[want.ID]; !bytes.Equal(e.Payload, want.Payload) || (e.Payload == nil) != (want.Payload == nil) || !want.Time.IsZero() && !e.Time.Equal(want.Time) {
			t.Errorf("handled was %+v, want %+v", e, want)
		}
	}

	// 4. A request is answered once, and its answer repeated. Its handler has the session's settings.
	guard, err := idempotency.New(pool, idempotency.Config{Logger: quiet, Principal: func(*http.Request) (string, error) { return "ann", nil }})
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]idempotency.Route{"transaction": {}, "lease": {Lease: time.Minute}} {
		ran := 0
		h := guard.Route(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran++
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(raw)
		}))
		for range 2 {
			req := httptest.NewRequest(http.MethodPost, "/"+name, strings.NewReader("{}"))
			req.Header.Set("Idempotency-Key", "key-"+name+"-0123456789")
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			if body, _ := io.ReadAll(rec.Body); rec.Code != http.StatusCreated || !bytes.Equal(body, raw) {
				t.Errorf("%s: %d %q", name, rec.Code, body)
			}
		}
		if ran != 1 {
			t.Errorf("%s: the handler ran %d times", name, ran)
		}
	}

	// 5. People find it.
	found, err := find.Event(ctx, pool, find.Query{ID: "one"})
	if err != nil || len(found.Sightings) == 0 {
		t.Errorf("found %+v: %v", found, err)
	}
	if err := holdfast.Check(ctx, pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
}

// unreadable is a codec that reads nothing.
type unreadable struct{ *pgtype.TimestamptzCodec }

func (unreadable) DecodeDatabaseSQLValue(*pgtype.Map, uint32, int16, []byte) (driver.Value, error) {
	return nil, errors.New("no time")
}

func (unreadable) PlanScan(*pgtype.Map, uint32, int16, any) pgtype.ScanPlan { return nil }

// Whatever keeps a session from reading values that are right, no event is given up for it.
func TestSessionSettings_ASessionThatReadsNoTimesGivesNoEventUp(t *testing.T) {
	skip.InShort(t, "its lanes rest after each failure")
	t.Parallel()
	db := migrated.New(t)
	broken := db.PoolWith(t, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: unreadable{&pgtype.TimestamptzCodec{}}})
			return nil
		}
	})
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 'placed', 'x')")
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select lane, 'orders', 'parked' || lane, 1, 'record', now(), 'parked', '', 'placed', now() from holdfast.lane`)
	p := &published{}
	run := func(pool *pgxpool.Pool, until func() bool) {
		t.Helper()
		r, err := relay.New(pool, p, relay.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		wait.Until(t, "the relay is so far", until)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the relay ended: %v", err)
		}
	}
	// A lane that has failed twice begins with one event, and would know which one is to blame.
	run(broken, func() bool { return pgtest.Count(t, db.Pool, "select min(epoch) from holdfast.lane") >= 4 })
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter"); n != 0 {
		t.Fatalf("%d events were given up", n)
	}
	run(db.Pool, func() bool { return len(p.all()) == 9 })
}

// Without array_nulls Postgres takes the null of a text array for a text, which is a payload.
func TestSessionSettings_ATombstoneIsWrittenAsSuchOrRefused(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	event := holdfast.Event{Topic: "orders", Type: "placed", Time: time.Now(), Headers: map[string]string{"a": "b"}}
	full := event
	full.Payload = []byte("NULL")
	for _, mode := range modes {
		for _, nulls := range []string{"on", "off"} {
			pool := db.PoolWith(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["array_nulls"], c.ConnConfig.DefaultQueryExecMode = nulls, mode
			})
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, event, event) })
			if err == nil {
				err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					some := full
					some.Payload = []byte("some")
					return outbox.Write(t.Context(), tx, event, some)
				})
			}
			if err != nil && (nulls == "on" || !strings.Contains(err.Error(), "array_nulls is off") || !strings.Contains(err.Error(), "it must be on")) {
				t.Errorf("array_nulls %s, mode %v: %v", nulls, mode, err)
			}
		}
	}
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, full, full) }); err != nil {
		t.Errorf("the payload NULL with array_nulls on: %v", err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where payload = 'NULL'"); n != 2 {
		t.Errorf("%d events have the payload NULL, want 2", n)
	}
}
