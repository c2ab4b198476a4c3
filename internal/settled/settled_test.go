package settled_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/settled"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// looks counts the looks of a pool.
type looks struct{ begun, running, most atomic.Int64 }

func (l *looks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if !strings.HasPrefix(q.SQL, "-- settled.") {
		return ctx
	}
	l.begun.Add(1)
	if n := l.running.Add(1); n > l.most.Load() {
		l.most.Store(n) // A room has one goroutine: nothing else stores it, unless the test is to fail.
	}
	return context.WithValue(ctx, looks{}, true)
}

func (l *looks) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(looks{}) != nil {
		l.running.Add(-1)
	}
}

func counted(t *testing.T, db *pgtest.DB) (*pgxpool.Pool, *looks) {
	t.Helper()
	l := &looks{}
	return db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = l }), l
}

func settle(t *testing.T, db *pgtest.DB, id, result string) {
	t.Helper()
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		values ('billing', 'shop', $1, 'orders', '', case when $2 <> 'stored' then now() end, $2)
		on conflict (consumer, source, event_id) do update set result = excluded.result, processed_at = excluded.processed_at`, id, result)
}

func event(id string) settled.Event { return settled.Event{"billing", "shop", id} }

// empty waits until nobody waits on the pool, and its goroutine has ended.
func empty(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	wait.Until(t, "the room is closed", func() bool { return settled.Callers(pool) < 0 })
}

func TestSettled_OneStatementAtATimeAsksForAll(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pool, l := counted(t, db)
	const events, callers = 1500, 3 // more events than a look has
	var all sync.WaitGroup
	var wrong atomic.Int64
	for n := range events * callers {
		all.Go(func() {
			result, err := settled.Wait(t.Context(), pool, "holdfast", event(fmt.Sprint(n%events)))
			if want := []string{"handled", "dead", "skipped", "discarded"}[n%events%4]; result != want || err != nil {
				wrong.Add(1)
				t.Errorf("%d: %q %v, want %s", n, result, err, want)
			}
		})
	}
	wait.Until(t, "all wait", func() bool { return settled.Callers(pool) == events*callers })
	before := l.begun.Load()
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'billing', 'shop', n::text, 'orders', '', now(), (array['handled', 'dead', 'skipped', 'discarded'])[n % 4 + 1] from generate_series(0, $1 - 1) n`, events)
	all.Wait()
	if n := l.most.Load(); n != 1 {
		t.Errorf("%d looks at once, want 1", n)
	}
	if n := l.begun.Load() - before; n >= events {
		t.Errorf("%d looks for %d events", n, events)
	}
	empty(t, pool)
}

// What is stored, or has no row, may still become anything. Sources and consumers are told apart.
func TestSettled_OnlyAFinalResultOfTheEventEndsAWait(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		values ('billing', 'bank', 'a', 'orders', '', now(), 'handled'), ('mail', 'shop', 'a', 'orders', '', now(), 'handled'), ('billing', 'shop', 'b', 'orders', '', now(), 'handled')`)
	for _, row := range []struct{ result, want string }{{"", ""}, {"stored", "stored"}} {
		pool, l := counted(t, db)
		if row.result != "" {
			settle(t, db, "a", row.result)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		because := errors.New("enough")
		go func() {
			wait.Until(t, "it has looked twice", func() bool { return l.begun.Load() >= 2 })
			cancel(because)
		}()
		if result, err := settled.Wait(ctx, pool, "holdfast", event("a")); result != row.want || !errors.Is(err, because) {
			t.Errorf("%q: %q %v, want %q and the cause", row.result, result, err, row.want)
		}
		empty(t, pool)
	}
	settle(t, db, "a", "handled")
	if result, err := settled.Wait(t.Context(), db.Pool, "holdfast", event("a")); result != "handled" || err != nil {
		t.Errorf("then it is %q %v", result, err)
	}
}

// A hint is all that can end this wait in time: by itself the next look is in an hour.
func TestSettled_WhatAnInboxTellsIsLookedAtAtOnce(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pool, l := counted(t, db)
	got := make(chan string, 1)
	go func() {
		result, err := settled.Wait(t.Context(), pool, "holdfast", event("a"))
		got <- fmt.Sprint(result, err)
	}()
	wait.Until(t, "a look is over, and the next one far", func() bool {
		return l.begun.Load() > 0 && l.running.Load() == 0 && settled.Delay(pool, event("a"), time.Hour) > time.Minute
	})
	settle(t, db, "a", "handled")
	settled.Tell("billing", "shop", "b")
	settled.Tell("mail", "shop", "a")
	settled.Tell("billing", "", "a")
	if in := settled.Delay(pool, event("a"), time.Hour); in < 30*time.Minute {
		t.Errorf("it is looked at in %s, though nothing was told of it", in)
	}
	settled.Tell("billing", "shop", "a")
	if s := <-got; s != "handled<nil>" {
		t.Error(s)
	}
	empty(t, pool)
}

func TestSettled_ErrorsThatWaitingDoesNotMendEndIt(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	closed := db.PoolOf(t, 1)
	closed.Close()
	for name, row := range map[string]struct {
		pool   *pgxpool.Pool
		schema string
		want   error
	}{
		"no schema":   {db.Pool, "other", sqlschema.ErrMissing},
		"no right":    {roletest.As(t, db, "producer"), "holdfast", sqlschema.ErrNoRights},
		"closed pool": {closed, "holdfast", puddle.ErrClosedPool},
	} {
		if result, err := settled.Wait(t.Context(), row.pool, row.schema, event("a")); result != "" || !errors.Is(err, row.want) {
			t.Errorf("%s: %q %v, want %v", name, result, err, row.want)
		}
		empty(t, row.pool)
	}
	settle(t, db, "a", "handled")
	if result, err := settled.Wait(t.Context(), roletest.As(t, db, "consumer"), "holdfast", event("a")); result != "handled" || err != nil {
		t.Errorf("as a consumer: %q %v", result, err)
	}
}

func TestSettled_AnOutageIsWaitedOut(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	var away atomic.Bool
	var refused atomic.Int64
	gone := errors.New("the database is away")
	pool := db.PoolWith(t, func(c *pgxpool.Config) {
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if away.Load() {
				refused.Add(1)
				return true, gone
			}
			return true, nil
		}
	})
	away.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		wait.Until(t, "two looks were refused", func() bool { return refused.Load() >= 2 })
		cancel()
	}()
	if _, err := settled.Wait(ctx, pool, "holdfast", event("a")); !errors.Is(err, context.Canceled) || !errors.Is(err, gone) {
		t.Errorf("it ends with %v, want the end of the context and why it was not answered", err)
	}
	refused.Store(0)
	go func() {
		wait.Until(t, "two looks were refused", func() bool { return refused.Load() >= 2 })
		settle(t, db, "a", "handled")
		away.Store(false)
	}()
	if result, err := settled.Wait(t.Context(), pool, "holdfast", event("a")); result != "handled" || err != nil {
		t.Errorf("after the outage: %q %v", result, err)
	}
	empty(t, pool)
}

// Somebody behind the same pooler has left its connections with a role that may do nothing.
func TestSettled_AConnectionWithAnotherRoleGetsItsOwnBack(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	settle(t, db, "a", "dead")
	pool := pgtest.BouncerPoolOf(t, db)
	pgtest.LeaveRoles(t, pool)
	if result, err := settled.Wait(t.Context(), pool, "holdfast", event("a")); result != "dead" || err != nil {
		t.Errorf("%q %v", result, err)
	}
	empty(t, pool)
}

// Row level security hides the rows of other consumers without an error.
func TestSettled_AUserOfOtherConsumersIsToldSo(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	settle(t, db, "a", "handled")
	prefix := roletest.Make(t, db)
	pool, name := roletest.Login(t, db, "", prefix+"_consumer")
	roletest.BindConsumer(t, db, name, "crm", "")
	for consumer, want := range map[string]error{"billing": sqlschema.ErrNoRights, "crm": context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		if want == context.Canceled {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		if result, err := settled.Wait(ctx, pool, "holdfast", settled.Event{Consumer: consumer, Source: "shop", ID: "a"}); result != "" || !errors.Is(err, want) {
			t.Errorf("%s: %q %v, want %v", consumer, result, err, want)
		}
		cancel()
	}
	empty(t, pool)
}

func TestSettled_ALookReadsARowOfEachByThePrimaryKey(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
		select 'c' || n % 3, 's' || n % 2, n::text, 'orders', '', now(), 'handled' from generate_series(1, 5000) n`)
	pgtest.Exec(t, db.Pool, "vacuum analyze holdfast.inbox")
	ids := strings.TrimSuffix(strings.Repeat("'7', ", 1000), ", ")
	for _, plan := range plantest.Of(t, db.Pool, settled.LookUp, fmt.Sprintf("array[%s], array[%[1]s], array[%[1]s]", ids)) {
		plan.Uses("inbox_pkey")
		plan.NeverReadsAllOf("inbox")
	}
	plantest.EveryStatement(t, []string{settled.LookUp}, map[string]string{})
}

// Nothing but what the inbox tells can end these waits in time: by itself the next look is in an hour.
func TestSettled_AnInboxTellsWhatItHasSettled(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	in, err := inbox.New(db.Pool, inbox.Config{
		Consumer: "billing",
		Retry:    retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond},
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var again atomic.Bool
	in.Handle("placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		switch {
		case e.ID == "bad":
			return retry.Permanent(errors.New("bad"))
		case strings.HasPrefix(e.ID, "late") && !again.Load():
			return retry.After(errors.New("not yet"), time.Second)
		case e.ID == "late and bad":
			return errors.New("bad again")
		}
		return nil
	})
	receive := func(id string) {
		if _, err := in.Receive(t.Context(), holdfast.Event{Topic: "orders", Type: "placed", Source: "shop", ID: id, Time: time.Now()}); err != nil {
			t.Error(err)
		}
	}
	run := func(string) {
		again.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- in.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			<-ended
		})
	}
	receive("late")
	receive("late and bad")
	rows := []struct {
		id, want string
		settles  func(id string)
		pool     *pgxpool.Pool
		got      chan string
	}{
		{id: "good", want: "handled", settles: receive},
		{id: "bad", want: "dead", settles: receive},
		{id: "late", want: "handled", settles: run},
		{id: "late and bad", want: "dead", settles: func(string) {}}, // run has
	}
	for i := range rows {
		row := &rows[i]
		var l *looks
		row.pool, l = counted(t, db)
		row.got = make(chan string, 1)
		go func() {
			result, err := settled.Wait(t.Context(), row.pool, "holdfast", event(row.id))
			row.got <- fmt.Sprint(result, err)
		}()
		wait.Until(t, "a look is over, and the next one far", func() bool {
			return l.begun.Load() > 0 && l.running.Load() == 0 && settled.Delay(row.pool, event(row.id), time.Hour) > time.Minute
		})
	}
	for _, row := range rows {
		row.settles(row.id)
		if s := <-row.got; s != row.want+"<nil>" {
			t.Errorf("%s: %s, want %s", row.id, s, row.want)
		}
		empty(t, row.pool)
	}
}
