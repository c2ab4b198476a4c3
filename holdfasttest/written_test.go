package holdfasttest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
)

func ids(events []holdfast.Event) string {
	var all []string
	for _, e := range events {
		all = append(all, e.ID)
	}
	return strings.Join(all, " ")
}

func named(id string) holdfast.Event {
	return holdfast.Event{ID: id, Type: "t", Topic: "o", Key: "k"}
}

func later(id string) holdfast.Event {
	e := named(id)
	e.NotBefore = time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
	return e
}

func TestWritten_WrittenIsWhatTheTransactionWroteInItsOrder(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	earlier := holdfasttest.Begin(t, pool)
	write(t, earlier, named("committed before"), later("scheduled before"))
	if err := earlier.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx := holdfasttest.Begin(t, pool)
	if got := holdfasttest.Written(t, tx); len(got) != 0 {
		t.Errorf("before anything is written: %s", ids(got))
	}
	write(t, tx, named("1"), later("2"), named("3"))

	beside := holdfasttest.Begin(t, pool)
	write(t, beside, named("beside"), later("scheduled beside"))
	if err := beside.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Under savepoints: what is released counts, what is rolled back does not.
	for id, keep := range map[string]bool{"kept": true, "rolled back": false} {
		sp, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		write(t, sp, named("log "+id), later("scheduled "+id))
		end := sp.Rollback
		if keep {
			end = sp.Commit
		}
		if got := holdfasttest.Written(t, sp); !strings.Contains(ids(got), "log "+id) || !strings.Contains(ids(got), "scheduled "+id) {
			t.Errorf("under the savepoint: %s", ids(got))
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write(t, tx, named("last"))
	// One call puts what is scheduled before what is not.
	if got, want := ids(holdfasttest.Written(t, tx)), "2 1 3 scheduled kept log kept last"; got != want {
		t.Errorf("written are %q, want %q", got, want)
	}
}

func TestWritten_AnEventIsReadBackAsItWasWritten(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config := pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		other, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		tx := holdfasttest.Begin(t, other)
		want := later("full")
		want.Source, want.Payload, want.Headers = "shop", []byte{0, 0xff, '\''}, map[string]string{"traceparent": `"x"`}
		want.Time = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		write(t, tx, want)
		if got := holdfasttest.Written(t, tx); len(got) != 1 || fmt.Sprintf("%#v", got[0]) != fmt.Sprintf("%#v", want) {
			t.Errorf("%s: got %#v, want %#v", mode, got, want)
		}
		tombstone, empty := named("tombstone"), named("empty")
		empty.Payload = []byte{}
		write(t, tx, tombstone, empty)
		if got := holdfasttest.Written(t, tx); len(got) != 3 || got[1].Payload != nil || got[2].Payload == nil || !got[1].NotBefore.IsZero() || got[1].Headers != nil {
			t.Errorf("%s: got %#v", mode, got)
		}
	}
}

func TestWritten_WrittenSinceIsWhatWasCommittedAfterTheMark(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	write1 := func(events ...holdfast.Event) {
		t.Helper()
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
			t.Fatal(err)
		}
	}
	start := holdfasttest.Now(t, pool)
	write1(named("1"), later("2"))
	middle := holdfasttest.Now(t, pool)
	if got := holdfasttest.WrittenSince(t, pool, middle); len(got) != 0 {
		t.Errorf("since now: %s", ids(got))
	}
	write1(later("3"), named("4"))
	open := holdfasttest.Begin(t, pool)
	write(t, open, named("5"))
	if got := ids(holdfasttest.WrittenSince(t, pool, middle)); got != "3 4" {
		t.Errorf("since the middle: %q, want those that are committed", got)
	}
	if got := ids(holdfasttest.WrittenSince(t, open, start)); got != "2 1 3 4 5" {
		t.Errorf("since the start, seen by the transaction that is open: %q", got)
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ids(holdfasttest.WrittenSince(t, pool, start)); got != "2 1 3 4" {
		t.Errorf("since the start: %q", got)
	}
}

func TestWritten_ALogInASchemaOfAnotherNameIsReadByItsName(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	pool := setup(t)
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{Schema: "other_one"}); err != nil {
		t.Fatal(err)
	}
	log := holdfasttest.Log{Schema: "other_one"}
	other, err := outbox.New(outbox.Config{Schema: "other_one"})
	if err != nil {
		t.Fatal(err)
	}
	tx := holdfasttest.Begin(t, pool)
	start := log.Now(t, tx)
	write(t, tx, named("here"))
	if err := other.Write(t.Context(), tx, named("there")); err != nil {
		t.Fatal(err)
	}
	log.RequireWritten(t, tx, named("there"))
	if got := ids(log.Written(t, tx)) + ", " + ids(log.WrittenSince(t, tx, start)) + ", " + ids(holdfasttest.Written(t, tx)); got != "there, there, here" {
		t.Errorf("got %q", got)
	}
	wantFailure(t, func(v testing.TB) { holdfasttest.Log{Schema: "No;"}.Written(v, tx) }, `schema is "No;"`)
	wantFailure(t, func(v testing.TB) { holdfasttest.Log{Schema: "absent"}.Written(v, tx) }, "read the log", "42P01")
	wantFailure(t, func(v testing.TB) { holdfasttest.Log{Schema: "absent"}.Now(v, pool) }, "mark the log", "42P01")
}

func TestWritten_WhatIsNotWrittenFailsTheTestWithAReadableDifference(t *testing.T) {
	t.Parallel()
	type events = []holdfast.Event
	alice := holdfast.Event{ID: "1", Type: "order.placed", Topic: "orders", Key: "alice", Source: "shop", Headers: map[string]string{"tenant": "a", "x": "y"},
		Payload: []byte(`{"id": 17, "cents": 1200, "lines": [{"sku": "tea"}, {"sku": "cup"}], "gift": false}`),
		Time:    time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}
	bob := holdfast.Event{ID: "2", Type: "order.cancelled", Topic: "orders", Key: "bob", Payload: []byte("plain")}
	tombstone := holdfast.Event{ID: "3", Type: "order.erased", Topic: "orders", Key: "carol"}
	all := events{alice, bob, tombstone}
	with := func(p string) holdfast.Event { return holdfast.Event{Type: "order.placed", Payload: []byte(p)} }
	for name, c := range map[string]struct {
		got, want events
		says      []string // none: it is found
	}{
		"nothing is wanted":              {all, nil, nil},
		"any event":                      {all, events{{}}, nil},
		"some fields":                    {all, events{{Type: "order.cancelled", Key: "bob"}}, nil},
		"all fields":                     {all, all, nil},
		"some headers":                   {all, events{{Headers: map[string]string{"tenant": "a"}}}, nil},
		"JSON that is written otherwise": {all, events{with(`{"gift":false,"lines":[{"sku":"tea"},{"sku":"cup"}],"cents":1.2e3,"id":17.0}`)}, nil},
		"a time in another zone":         {all, events{{Time: alice.Time.In(time.FixedZone("x", 3600))}}, nil},
		"a time with more digits than Postgres has": {all, events{{Time: alice.Time.Add(999)}}, nil},
		"two of one kind are two":                   {events{alice, alice}, events{{Key: "alice"}, {Key: "alice"}}, nil},

		"nothing was written": {nil, events{{Type: "order.placed"}}, []string{`the event wanted was not written: Type "order.placed"`, "nothing was written at all"}},
		"another key": {all, events{{Type: "order.placed", Key: "dave"}}, []string{
			`not written: Type "order.placed", Key "dave"`, "event 1 written comes closest", `Key: want "dave", got "alice"`,
			`2. Type "order.cancelled", Topic "orders", Key "bob", ID "2", Payload "plain"`}},
		"the closest has the same type": {all, events{{Type: "order.cancelled", Key: "alice", Source: "shop"}}, []string{
			"event 2 written comes closest", `Key: want "alice", got "bob"`, `Source: want "shop", got ""`}},
		"a field of the payload": {all, events{with(`{"id":17,"cents":1300,"lines":[{"sku":"tea"},{"sku":"pot"}],"gift":false}`)}, []string{
			"Payload.cents: want 1300, got 1200", `Payload.lines[1].sku: want "pot", got "cup"`}},
		"fields more and fewer": {all, events{with(`{"id":17,"cents":1200,"lines":[{"sku":"tea"}],"note":null}`)}, []string{
			"Payload.gift: want nothing, got false", `Payload.lines[1]: want nothing, got {"sku":"cup"}`, "Payload.note: want null, got nothing"}},
		"another kind of value":       {all, events{with(`{"id":"17","cents":null,"lines":{},"gift":[]}`)}, []string{`Payload.id: want "17", got 17`, "Payload.cents: want null, got 1200", "Payload.gift: want [], got false", `Payload.lines: want {}, got [{"sku":"tea"},{"sku":"cup"}]`}},
		"large numbers":               {events{{Payload: []byte("9007199254740993")}}, events{{Payload: []byte("9007199254740992")}}, []string{"Payload: want 9007199254740992, got 9007199254740993"}},
		"a payload that is not JSON":  {all, events{{Type: "order.cancelled", Payload: []byte(`{"a":1}`)}}, []string{`Payload: want "{\"a\":1}", got "plain"`}},
		"JSON with something behind":  {events{{Payload: []byte(`{} {}`)}}, events{{Payload: []byte(`{}`)}}, []string{`Payload: want "{}", got "{} {}"`}},
		"a tombstone":                 {all, events{{Type: "order.erased", Payload: []byte(`{}`)}}, []string{`Payload: want "{}", got a tombstone (nil)`}},
		"an empty payload, tombstone": {all, events{{Type: "order.erased", Payload: []byte{}}}, []string{`Payload: want "", got a tombstone (nil)`}},
		"headers": {all, events{{Type: "order.placed", Headers: map[string]string{"tenant": "b", "z": "1"}}}, []string{
			`Headers[tenant]: want "b", got "a"`, `Headers[z]: want "1", got nothing`}},
		"times": {all, events{{Type: "order.placed", Time: alice.Time.Add(time.Second), NotBefore: alice.Time}}, []string{
			"Time: want 2026-01-02T03:04:06.000006Z, got 2026-01-02T03:04:05.000006Z", "NotBefore: want 2026-01-02T03:04:05.000006Z, got nothing"}},
		"another order": {all, events{{Key: "bob"}, {Key: "alice"}}, []string{
			`event 2 of the 2 wanted was not written: Key "alice"`, "event 1 written matches, but comes too early", "found up to event 2"}},
		"one where two are wanted": {all, events{{Key: "alice"}, {Key: "alice"}}, []string{"event 2 of the 2 wanted", "comes too early"}},
		"a long payload is cut":    {events{{Payload: []byte(strings.Repeat("x", 5000))}}, events{{Key: "k"}}, []string{"… (5002 bytes)"}},
		"very many":                {make(events, 30), events{{Key: "k"}}, []string{"20. any event", "… and 10 more"}},
	} {
		if c.says != nil {
			wantFailure(t, func(v testing.TB) { holdfasttest.RequireEvents(v, c.got, c.want...) }, c.says...)
			continue
		}
		if v := ending.Of(t, func(v testing.TB) { holdfasttest.RequireEvents(v, c.got, c.want...) }); v.Failed != "" {
			t.Errorf("%s: the test fails with %s", name, v.Failed)
		}
	}
}

func TestWritten_RequireWrittenLooksAtTheTransaction(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	tx := holdfasttest.Begin(t, pool)
	write(t, tx, placed("alice", `{"cents":1}`), later("2"))
	holdfasttest.RequireWritten(t, tx, holdfast.Event{Key: "alice", Payload: []byte(`{ "cents": 1 }`)})
	holdfasttest.RequireWritten(t, tx, holdfast.Event{ID: "2", NotBefore: holdfasttest.Written(t, tx)[0].NotBefore})
	wantFailure(t, func(v testing.TB) {
		holdfasttest.RequireWritten(v, tx, holdfast.Event{Type: "order.placed", Payload: []byte(`{"cents":2}`)})
	}, "Payload.cents: want 2, got 1")
	pgtest.Exec(t, tx, "savepoint s")
	_, _ = tx.Exec(t.Context(), "select 1/0")
	wantFailure(t, func(v testing.TB) { holdfasttest.RequireWritten(v, tx, holdfast.Event{}) }, "read the log", "25P02")
}
