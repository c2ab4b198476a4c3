package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestRetentionBeside_RetentionPassesOverALockedRowAndTakesItLater(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	in := b.inbox()
	b.oldRows("http-", nil, 100)
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// As a replay of a letter does: the row says 'stored' again.
	if _, err := tx.Exec(b.Context(), "update holdfast.inbox set result = 'stored', processed_at = null where event_id in ('http-7', 'http-8')"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, removed := b.pass(in, 30); removed != 98 {
		t.Errorf("%d rows were removed, want 98", removed)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it waited %v", took)
	}
	if _, err := tx.Exec(b.Context(), "update holdfast.inbox set result = 'handled', processed_at = received_at where event_id = 'http-7'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(b.Context()); err != nil {
		t.Fatal(err)
	}
	if _, removed := b.pass(in, 30); removed != 1 {
		t.Errorf("%d rows were removed after the commit, want 1", removed)
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id = 'http-8' and result = 'stored'"); n != 1 {
		t.Error("the row that waits again is gone")
	}
}

func TestRetentionBeside_RetentionsTurnBelongsToOneNodeAndComesWhenItIsTime(t *testing.T) {
	b := setup(t)
	one, two := b.inbox(), b.inbox()
	b.oldRows("http-", nil, 300)
	if got, err := one.retention.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
		t.Fatalf("the first turn: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '5 minutes'")
	if got, err := two.retention.retentionTurn(b.Context(), 100, false); !errors.Is(err, errNotOurTurn) {
		t.Errorf("before its time: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '1 day'") // by a clock that was wrong
	if got, err := two.retention.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
		t.Errorf("a time that is too far away: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.Context(), "select from holdfast.retention for update"); err != nil {
		t.Fatal(err)
	}
	if got, err := one.retention.retentionTurn(b.Context(), 100, false); !errors.Is(err, errNotOurTurn) {
		t.Errorf("beside another node: %+v, %v", got, err)
	}
	_ = tx.Rollback(b.Context())
	if got, err := one.retention.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
		t.Errorf("after the other node: %+v, %v", got, err)
	}
}

// TestRetentionBeside_RetentionOnFourNodesRemovesAllThatIsDueAndNoMore also has a transaction that locks rows in
// another order, as replays and batches do.
func TestRetentionBeside_RetentionOnFourNodesRemovesAllThatIsDueAndNoMore(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	b := setup(t)
	const due, held = 30_000, 500
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, $1)`, due/2)
	b.oldRows("http-", nil, due/2)
	b.oldRows("kafka-", 0, due/2+held)
	var removed atomic.Int64
	change := func(c *Config) {
		c.Retention = time.Minute
		c.Observer.OnCleaned = func(rows int, took time.Duration) {
			if rows < 1 || took <= 0 {
				t.Errorf("OnCleaned(%d, %v)", rows, took)
			}
			removed.Add(int64(rows))
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var others sync.WaitGroup
	var received atomic.Int64
	for node := range 4 {
		in := b.inbox(change)
		in.Handle("order.placed", effectOf)
		defer b.run(in.Run)()
		others.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if out, err := in.Receive(context.Background(), event(fmt.Sprintf("new-%d-%d", node, n), "")); err != nil || out != Handled {
					t.Errorf("Receive: %v, %v", out, err)
					return
				}
				received.Add(1)
			}
		})
		others.Go(func() { // with no pauses: turns as close as they can come
			for ctx.Err() == nil {
				_, err := in.retention.retentionTurn(ctx, 500, false)
				if err != nil && !errors.Is(err, errNotOurTurn) && ctx.Err() == nil {
					t.Errorf("turn: %v", err)
					return
				}
			}
		})
	}
	others.Go(func() {
		for ctx.Err() == nil {
			err := pgx.BeginFunc(context.Background(), b.db, func(tx pgx.Tx) error {
				_, err := tx.Exec(context.Background(), `update holdfast.inbox i set attempts = attempts + 1
					from (select consumer, source, event_id from holdfast.inbox where event_id ~ '^http' order by processed_at desc limit 200 for update) o
					where i.consumer = o.consumer and i.source = o.source and i.event_id = o.event_id`)
				return err
			})
			if err != nil {
				t.Errorf("update: %v", err)
				return
			}
		}
	})
	others.Go(func() { // time passes quickly
		for ctx.Err() == nil {
			if _, err := b.db.Exec(context.Background(), "update holdfast.retention set next_at = '-infinity' where next_at > now()"); err != nil {
				t.Errorf("update: %v", err)
				return
			}
		}
	})
	deadline := time.Now().Add(3 * time.Minute)
	for b.count("select count(*) from holdfast.inbox where processed_at < now() - interval '1 day'") > held {
		if time.Now().After(deadline) {
			t.Error("rows that are due are still there")
			break
		}
	}
	cancel()
	others.Wait()
	if n := b.count(`select count(*) from holdfast.inbox where event_id ~ '^kafka-' and "offset" >= $1`, due/2); n != held {
		t.Errorf("%d rows at or above the position are left, want %d", n, held)
	}
	if n := b.count(`select count(*) from holdfast.inbox where event_id ~ '^(http|kafka)-' and coalesce("offset", 0) < $1`, due/2); n != 0 {
		t.Errorf("%d rows that are due are left", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id ~ '^new-'"); n != received.Load() {
		t.Errorf("%d rows of %d received events are left", n, received.Load())
	}
	if len(b.observed.errs) > 0 {
		t.Errorf("%d errors, the first: %v", len(b.observed.errs), b.observed.errs[0])
	}
}

func TestRetentionBeside_RunRemovesOldRowsByItselfAndTellsTheObserver(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	b.oldRows("http-", nil, 300)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', '', 'young', 'orders', '', now() + interval '1 hour', 'handled')`) // however long the test takes
	removed := make(chan int, 100)
	in := b.inbox(func(c *Config) {
		c.Retention = time.Minute
		c.Observer.OnCleaned = func(rows int, _ time.Duration) { removed <- rows }
	})
	stop := b.run(in.Run)
	for n := 0; n < 300; {
		select {
		case rows := <-removed:
			n += rows
		case <-time.After(wait.Limit()):
			t.Fatalf("after %v %d rows are gone", wait.Limit(), n)
		}
	}
	stop()
	if n := b.count("select count(*) from holdfast.inbox"); n != 1 {
		t.Errorf("%d rows are left, want 1", n)
	}
}

func TestRetentionBeside_AnErrorOfRetentionIsReportedAndRunGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	b.oldRows("http-", nil, 10)
	pgtest.Exec(t, b.db, "create function away() returns trigger language plpgsql as $$ begin raise exception 'away' using errcode = '57P03'; end $$")
	pgtest.Exec(t, b.db, "create trigger away before insert or update on holdfast.retention for each statement execute function away()")
	cleaned := make(chan int, 10)
	in := b.inbox(func(c *Config) {
		c.Retention = time.Minute
		c.Observer.OnCleaned = func(rows int, _ time.Duration) { cleaned <- rows }
	})
	in.Handle("order.placed", effectOf)
	defer b.run(in.Run)()
	b.await("trouble", func(o *observations) bool {
		for _, err := range o.errs {
			if strings.Contains(err.Error(), "retention") {
				return true
			}
		}
		return false
	})
	if err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
		_, err := in.StoreTx(b.Context(), tx, event("stored", "k"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	b.awaitOutcome("stored", Handled)
	pgtest.Exec(t, b.db, "drop trigger away on holdfast.retention")
	select {
	case n := <-cleaned:
		if n != 10 {
			t.Errorf("%d rows were removed, want 10", n)
		}
	case <-time.After(wait.Limit()):
		t.Fatalf("nothing was removed in %v after the trouble was over", wait.Limit())
	}
}

func TestRetentionBeside_RetentionGivesUpOnALockedTableSoon(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	b.oldRows("http-", nil, 10)
	pool := b.db.PoolOf(t, 1)
	in := b.inboxOn(pool)
	settings := func() string {
		var s string
		err := pool.QueryRow(b.Context(), `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
			where name in ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit')`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := settings()
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.Context(), "lock table holdfast.inbox in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, err := in.retention.retentionTurn(b.Context(), 100, false); err == nil || !strings.Contains(err.Error(), "55P03") || time.Since(begun) > 30*time.Second {
		t.Errorf("beside a lock on the table: %v after %v, want 55P03 soon", err, time.Since(begun))
	}
	_ = tx.Rollback(b.Context())
	if got := b.turn(in, 100); got.removed != 10 {
		t.Errorf("%d rows were removed, want 10", got.removed)
	}
	if after := settings(); after != before {
		t.Errorf("settings were left behind: %s; before %s", after, before)
	}
}
