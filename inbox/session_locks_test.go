package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// unlocked wants that nobody holds a lock of a session. It waits: a session that was closed is on its way.
func (b *bundle) unlocked() {
	b.Helper()
	wait.Until(b, "no session holds a lock that a handler left", func() bool {
		return b.count("select count(*) from pg_locks where locktype = 'advisory' and objid = 42 and database = (select oid from pg_database where datname = current_database())") == 0
	})
}

const timeIsOver = "its time is over"

// leavers are handlers that take a lock of the session, and fail before they give it back.
var leavers = map[string]func(ctx context.Context, tx pgx.Tx) error{
	"an error": func(context.Context, pgx.Tx) error { return errors.New("not yet") },
	"a panic":  func(context.Context, pgx.Tx) error { panic("not yet") },
	"a statement that failed": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select 1/0")
		return err
	},
	"nil after a statement that failed": func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "select 1/0")
		return nil
	},
	timeIsOver: func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return ctx.Err() },
	"it ended its transaction": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, "commit")
		return err
	},
	"what it wrote is refused by COMMIT": func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into checked values (1)")
		return err
	},
}

// What a handler left locked on its session does not stay there for whoever gets the connection next.
func TestSessionLocks_WhatAFailedHandlerLeftLockedIsGivenUp(t *testing.T) {
	for name, leave := range leavers {
		t.Run(name, func(t *testing.T) {
			timeout := 40 * time.Second
			if name == timeIsOver {
				skip.InShort(t, "its handlers wait until their time is over")
				timeout = time.Second
			}
			b := setup(t)
			b.leavesNothing(b.db.PoolOf(t, 2), leave, timeout)
		})
	}
}

// Behind a pooler the session is another client's as soon as the transaction has ended.
func TestSessionLocks_WhatAFailedHandlerLeftLockedBehindAPoolerIsGivenUp(t *testing.T) {
	b := setup(t)
	b.leavesNothing(pgtest.BouncerPoolOf(t, b.db), leavers["an error"], 40*time.Second)
}

func (b *bundle) leavesNothing(pool *pgxpool.Pool, leave func(ctx context.Context, tx pgx.Tx) error, timeout time.Duration) {
	b.Helper()
	pgtest.Exec(b, b.db, "create table parent (id int primary key)")
	pgtest.Exec(b, b.db, "create table checked (id int references parent deferrable initially deferred)")
	in := b.inboxOn(pool, func(c *Config) {
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
		c.Timeout = timeout
	})
	handle := func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_lock(42)"); err != nil {
			return err
		}
		return leave(ctx, tx)
	}
	in.Handle("order.placed", handle)
	// 1. By Receive, in a transaction of its own.
	_, _ = in.Receive(b.Context(), event("1", "")) // The outcome is another test's.
	b.unlocked()
	// 2. An event that is stored.
	b.store(b.inbox(), event("2", ""))
	pgtest.Exec(b, b.db, "update holdfast.stored set next_at = 'infinity' where event_id = '1'")
	got, err := in.claims.claim(b.Context(), 1)
	if err != nil || len(got) != 1 {
		b.Fatalf("claimed %d: %v", len(got), err)
	}
	if err := in.backlog.work(b.Context(), got[0], nil); err != nil {
		b.Fatal(err)
	}
	b.unlocked()
	// 3. Events of a partition, which share transactions.
	other := b.inboxOn(pool, func(c *Config) { *c = in.c; c.Consumer = "shipping" })
	other.Handle("order.placed", handle)
	stop := b.consumeFake(other, newFakeGeneration(logOf(event("3", "a"), event("4", "b"), event("5", "c"))))
	b.await("all have failed", func(o *observations) bool {
		for _, id := range []string{"3", "4", "5"} {
			if len(o.outcomes[id]) == 0 {
				return false
			}
		}
		return true
	})
	stop()
	b.unlocked()
}
