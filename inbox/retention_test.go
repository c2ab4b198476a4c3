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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// turn makes one turn of retention that must be ours.
func (b *bundle) turn(in *Inbox, limit int) retained {
	b.Helper()
	// Whatever pause the last one asked for is over.
	pgtest.Exec(b, b.db, "update holdfast.retention set next_at = '-infinity'")
	t, err := in.retentionTurn(b.Context(), limit, false)
	if err != nil {
		b.Fatalf("turn: %v", err)
	}
	return t
}

// pass makes turns until one meets the end, and says how many rows they read and removed.
func (b *bundle) pass(in *Inbox, limit int) (read, removed int) {
	b.Helper()
	next := limit
	for range 1000 {
		t := b.turn(in, next)
		read, removed = read+t.read, removed+t.removed
		if t.read < next {
			return read, removed
		}
		next = limit // as small as the test wants it, where that gets on
		if t.removed == 0 {
			next = t.nextLimit
		}
	}
	b.Fatal("the pass does not end")
	return 0, 0
}

func TestRetentionRemovesWhatIsSettledLongEnoughAndBelowThePosition(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values
		('billing', 'orders', 0, 100), ('billing', 'orders', 1, 0), ('billing', 'refunds', 2, 500), ('mail', 'orders', 0, 500), ('mail', 'orders', 3, 500)`)
	rows := []struct {
		name                string
		consumer, result    string
		received, processed string // spans before now; "" is null
		partition, offset   any
		letter              string // its state
		goes                bool
	}{
		{name: "old, from HTTP", goes: true},
		{name: "young, from HTTP", received: "167 hours", processed: "167 hours"},
		{name: "received long ago, settled a moment ago", processed: "1 minute"},
		{name: "old, below the position", partition: 0, offset: 99, goes: true},
		{name: "young, below the position", received: "167 hours", processed: "167 hours", partition: 0, offset: 99},
		{name: "old, at the position", partition: 0, offset: 100},
		{name: "old, above the position", partition: 0, offset: 101},
		{name: "old, the first of a partition that stands at 0", partition: 1, offset: 0},
		{name: "old, below the position of the same partition of another topic", partition: 2, offset: 7},
		{name: "old, below another consumer's position only", partition: 3, offset: 7},
		{name: "old, of a partition without a position", partition: 9, offset: 0},
		{name: "old, stored", result: "stored", processed: "null"},
		{name: "old, stored, below the position", result: "stored", processed: "null", partition: 0, offset: 3},
		{name: "old, dead without a letter", result: "dead", goes: true},
		{name: "old, dead, its letter is open", result: "dead", letter: "open"},
		{name: "old, dead, below the position, its letter is open", result: "dead", letter: "open", partition: 0, offset: 4},
		{name: "old, dead, its letter is being replayed", result: "dead", letter: "replaying"},
		{name: "old, dead, its letter was replayed", result: "dead", letter: "replayed", goes: true},
		{name: "old, dead, its letter was discarded", result: "dead", letter: "discarded", partition: 0, offset: 5, goes: true},
		{name: "old, handled, beside a letter of a conflict", letter: "open", goes: true},
		{name: "old, discarded", result: "discarded", goes: true},
		{name: "old, skipped", result: "skipped", goes: true},
		{name: "old, another consumer's", consumer: "mail"},
	}
	var stays int64
	for _, r := range rows {
		consumer, result := or(r.consumer, "billing"), or(r.result, "handled")
		received, processed := or(r.received, "169 hours"), or(r.processed, "169 hours")
		pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, received_at, processed_at, result)
			values ($1, 'shop', $2, 'orders', $3, $4, '', now() - $5::text::interval, case when $6::text <> 'null' then now() - nullif($6::text, 'null')::interval end, $7)`,
			consumer, r.name, r.partition, r.offset, received, processed, result)
		if r.letter != "" {
			pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash)
				values ('inbox', $1, 'test', $2, $3, 'shop', 't', 'orders', '', now(), '')`, consumer, r.letter, r.name)
		}
		if !r.goes {
			stays++
		}
	}
	// A letter of another consumer about the same event keeps nothing.
	pgtest.Exec(t, b.db, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash)
		values ('inbox', 'mail', 'test', 'old, dead without a letter', 'shop', 't', 'orders', '', now(), '')`)
	for _, limit := range []int{3, 1000} { // a second pass takes nothing more
		b.pass(in, limit)
		for _, r := range rows {
			got := b.count("select count(*) from holdfast.inbox where event_id = $1", r.name) == 0
			if got != r.goes {
				t.Errorf("turns of %d rows: %q: gone %v, want %v", limit, r.name, got, r.goes)
			}
		}
		if n := b.count("select count(*) from holdfast.inbox"); n != stays {
			t.Errorf("turns of %d rows: %d rows are left, want %d", limit, n, stays)
		}
	}
}

// oldRows inserts n rows of a partition, a millisecond apart, that were settled longer ago than the window.
func (b *bundle) oldRows(name string, partition any, n int) {
	b.Helper()
	pgtest.Exec(b, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, received_at, processed_at, result)
		select 'billing', 'shop', $1::text || n, 'orders', $2::int, case when $2::int is not null then n end, '',
		       now() - interval '30 days' + n * interval '1 millisecond', now() - interval '30 days' + n * interval '1 millisecond', 'handled'
		  from generate_series(0, $3::int - 1) n`, name, partition, n)
}

func TestRetentionReadsRowsOfAStalledPartitionOnceInAPassAndRemovesThemWhenItGoesOn(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 10), ('billing', 'orders', 1, 1000)`)
	b.oldRows("stalled-", 0, 1000)
	b.oldRows("going-", 1, 1000)
	b.oldRows("http-", nil, 1000)
	if read, removed := b.pass(in, 100); removed != 2010 || read > 3100 {
		t.Errorf("the first pass read %d rows and removed %d, want about 3000 and 2010", read, removed)
	}
	if read, removed := b.pass(in, 100); removed != 0 || read > 1100 {
		t.Errorf("the second pass read %d rows and removed %d, want about 990 and none", read, removed)
	}
	pgtest.Exec(t, b.db, `update holdfast.consumer_position set position = 600 where partition = 0`)
	if _, removed := b.pass(in, 100); removed != 590 {
		t.Errorf("after the position moved %d rows were removed, want 590", removed)
	}
	if n := b.count(`select count(*) from holdfast.inbox where "offset" < 600 or partition is distinct from 0`); n != 0 {
		t.Errorf("%d rows are left that should have gone", n)
	}
	if n := b.count("select count(*) from holdfast.inbox"); n != 400 {
		t.Errorf("%d rows are left, want 400", n)
	}
}

func TestRetentionGetsPastManyRowsOfOneInstantThatMustStay(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, partition, "offset", hash, processed_at, result)
		select 'billing', '', 'stalled-' || n, 'orders', 0, n, '', now() - interval '40 days', 'handled' from generate_series(1, 3000) n`)
	b.oldRows("http-", nil, 500)
	b.pass(in, 100)
	if n := b.count("select count(*) from holdfast.inbox where partition is null"); n != 0 {
		t.Errorf("%d rows behind them are left", n)
	}
	if n := b.count("select count(*) from holdfast.inbox"); n != 3000 {
		t.Errorf("%d rows are left, want 3000", n)
	}
}

func TestRetentionPassesOverARowThatAnotherTransactionHasAndTakesItLater(t *testing.T) {
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
	if took := time.Since(begun); took > 10*time.Second {
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

func TestRetentionsTurnBelongsToOneNodeAndComesWhenItIsTime(t *testing.T) {
	b := setup(t)
	one, two := b.inbox(), b.inbox()
	b.oldRows("http-", nil, 300)
	if got, err := one.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
		t.Fatalf("the first turn: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '5 minutes'")
	if got, err := two.retentionTurn(b.Context(), 100, false); !errors.Is(err, errNotOurTurn) {
		t.Errorf("before its time: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '1 day'") // by a clock that was wrong
	if got, err := two.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
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
	if got, err := one.retentionTurn(b.Context(), 100, false); !errors.Is(err, errNotOurTurn) {
		t.Errorf("beside another node: %+v, %v", got, err)
	}
	_ = tx.Rollback(b.Context())
	if got, err := one.retentionTurn(b.Context(), 100, false); err != nil || got.removed != 100 {
		t.Errorf("after the other node: %+v, %v", got, err)
	}
}

func TestADailyTurnFindsRowsBehindTheMark(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	b.oldRows("http-", nil, 100)
	b.pass(in, 1000)
	// A transaction that had been open since before everything else.
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', '', 'late', 'orders', '', now() - interval '60 days', 'handled')`)
	if _, removed := b.pass(in, 1000); removed != 0 {
		t.Errorf("%d rows were removed behind the mark", removed)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	if got, err := in.retentionTurn(b.Context(), 1000, true); err != nil || got.removed != 1 {
		t.Errorf("%+v, %v; want 1 row removed", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	if got, err := in.retentionTurn(b.Context(), 1000, true); err != nil || got.read != 0 {
		t.Errorf("%+v, %v; want nothing read", got, err)
	}
	if n := b.count("select count(*) from holdfast.retention where from_at is not null"); n != 1 {
		t.Error("the mark was lost where there was nothing to read")
	}
}

// TestRetentionOnFourNodesBesideReceiversRemovesAllThatIsDueAndNothingElse also has a transaction that locks rows in
// another order, as replays and batches do.
func TestRetentionOnFourNodesBesideReceiversRemovesAllThatIsDueAndNothingElse(t *testing.T) {
	b := setup(t)
	const due, held = 30_000, 500
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, $1)`, due/2)
	b.oldRows("http-", nil, due/2)
	b.oldRows("kafka-", 0, due/2+held)
	var removed atomic.Int64
	change := func(c *Config) {
		c.Window = time.Minute
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
				_, err := in.retentionTurn(ctx, 500, false)
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
	deadline := time.Now().Add(60 * time.Second)
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
	if len(b.told.errs) > 0 {
		t.Errorf("%d errors, the first: %v", len(b.told.errs), b.told.errs[0])
	}
}

func TestRunRemovesOldRowsByItselfAndTellsTheObserver(t *testing.T) {
	b := setup(t)
	b.oldRows("http-", nil, 300)
	pgtest.Exec(t, b.db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', '', 'young', 'orders', '', now(), 'handled')`)
	removed := make(chan int, 100)
	in := b.inbox(func(c *Config) {
		c.Window = time.Minute
		c.Observer.OnCleaned = func(rows int, _ time.Duration) { removed <- rows }
	})
	stop := b.run(in.Run)
	for n := 0; n < 300; {
		select {
		case rows := <-removed:
			n += rows
		case <-time.After(30 * time.Second):
			t.Fatalf("after 30 s %d rows are gone", n)
		}
	}
	stop()
	if n := b.count("select count(*) from holdfast.inbox"); n != 1 {
		t.Errorf("%d rows are left, want 1", n)
	}
}

func TestTroubleOfRetentionIsToldAndTriedAgainAndRunGoesOn(t *testing.T) {
	b := setup(t)
	b.oldRows("http-", nil, 10)
	pgtest.Exec(t, b.db, "alter table holdfast.retention rename to away")
	cleaned := make(chan int, 10)
	in := b.inbox(func(c *Config) {
		c.Window = time.Minute
		c.Observer.OnCleaned = func(rows int, _ time.Duration) { cleaned <- rows }
	})
	in.Handle("order.placed", effectOf)
	defer b.run(in.Run)()
	b.await("trouble", func(o *telling) bool {
		for _, err := range o.errs {
			if strings.Contains(err.Error(), "retention") {
				return true
			}
		}
		return false
	})
	if err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
		_, err := in.Store(b.Context(), tx, event("stored", "k"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	b.awaitOutcome("stored", Handled)
	pgtest.Exec(t, b.db, "alter table holdfast.away rename to retention")
	select {
	case n := <-cleaned:
		if n != 10 {
			t.Errorf("%d rows were removed, want 10", n)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was removed in 30 s after the trouble was over")
	}
}

func TestRetentionGivesUpOnALockedTableSoonAndLeavesNoSettingBehind(t *testing.T) {
	b := setup(t)
	b.oldRows("http-", nil, 10)
	config := b.db.Config().Copy()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
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
	if _, err := in.retentionTurn(b.Context(), 100, false); err == nil || !strings.Contains(err.Error(), "55P03") || time.Since(begun) > 10*time.Second {
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

func TestRetentionWorksInEveryModeOfPgx(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			config := b.db.Config().Copy()
			switch mode {
			case "cache_describe":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
			case "describe_exec":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
			case "exec":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			case "simple_protocol":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			}
			config.ConnConfig.RuntimeParams["timezone"] = "Asia/Kathmandu"
			pool, err := pgxpool.NewWithConfig(b.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			in := b.inboxOn(pool)
			pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 100)`)
			b.oldRows("kafka-", 0, 250)
			b.oldRows("http-", nil, 250)
			for range 2 {
				b.pass(in, 50)
			}
			if n := b.count("select count(*) from holdfast.inbox"); n != 150 {
				t.Errorf("%d rows are left, want 150", n)
			}
			if err := in.forgetStarts(b.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRetentionForgetsStartsThatNobodyAskedForAgain(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Window = time.Minute })
	pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, starts, last_at) values
		('billing', '', 'leaked', 1, now() - interval '25 hours'), ('billing', '', 'a slow crash loop', 2, now() - interval '23 hours'), ('mail', '', 'other', 1, now() - interval '25 hours')`)
	if err := in.forgetStarts(b.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count("select count(*) from holdfast.start where event_id = 'leaked'"); n != 0 {
		t.Error("the leaked start is still there")
	}
	if n := b.count("select count(*) from holdfast.start"); n != 2 {
		t.Errorf("%d starts are left, want 2", n)
	}
}

func TestRetentionReadsByItsIndexHoweverLittleThePlannerKnows(t *testing.T) {
	for _, state := range []string{"the table is empty", "it was never analyzed", "it was analyzed", "it was analyzed while it was empty"} {
		t.Run(state, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			pgtest.Exec(t, b.db, "alter table holdfast.inbox set (autovacuum_enabled = off)")
			if strings.HasSuffix(state, "while it was empty") {
				pgtest.Exec(t, b.db, "vacuum analyze")
			}
			if state != "the table is empty" {
				pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) select 'billing', 'orders', p, 100000 from generate_series(0, 63) p`)
				b.oldRows("http-", nil, 20_000)
				b.oldRows("kafka-", 0, 20_000)
			}
			if state == "it was analyzed" {
				pgtest.Exec(t, b.db, "vacuum analyze")
			}
			for _, cache := range []string{"force_generic_plan", "force_custom_plan"} {
				conn, err := b.db.Acquire(b.Context())
				if err != nil {
					t.Fatal(err)
				}
				plan := func() string {
					defer conn.Release()
					tx, err := conn.BeginTx(b.Context(), pgx.TxOptions{BeginQuery: in.q.retentionBegin})
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = tx.Rollback(context.Background()) }()
					for _, statement := range []string{"set local plan_cache_mode = " + cache,
						"prepare sweep (text, timestamptz, bigint, int) as " + in.q.retentionSweep} {
						if _, err := tx.Exec(b.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
							t.Fatal(err)
						}
					}
					rows, err := tx.Query(b.Context(), "explain execute sweep ('billing', now() - interval '30 days', 604800000000, 1000)", pgx.QueryExecModeSimpleProtocol)
					if err != nil {
						t.Fatal(err)
					}
					lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
					if err != nil {
						t.Fatal(err)
					}
					_, err = tx.Exec(b.Context(), "deallocate sweep", pgx.QueryExecModeSimpleProtocol)
					if err != nil {
						t.Fatal(err)
					}
					return strings.Join(lines, "\n")
				}()
				for _, want := range []string{"Index Scan using inbox_settled on inbox", "consumer_position_pkey", "letter_event", "Tid Scan on inbox f", "Tid Scan on inbox i"} {
					if !strings.Contains(plan, want) {
						t.Errorf("%s: the plan has no %q:\n%s", cache, want, plan)
					}
				}
				for _, bad := range []string{"Seq Scan", "Sort", "Bitmap", "inbox_pkey", "JIT"} {
					if strings.Contains(plan, bad) {
						t.Errorf("%s: the plan has a %q:\n%s", cache, bad, plan)
					}
				}
			}
		})
	}
}

func TestARecordThatComesAgainAfterItsRowWasRemovedIsStaleAndNotHandledAgain(t *testing.T) {
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 20)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consume(in)
	b.awaitHandled(20)
	stop()
	// Eight days pass for the first fifteen; the position was lost for the last two of those: they stay.
	pgtest.Exec(t, b.db, `update holdfast.inbox set received_at = received_at - interval '8 days', processed_at = processed_at - interval '8 days' where "offset" < 15`)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 13")
	if _, removed := b.pass(in, 4); removed != 13 {
		t.Errorf("%d rows were removed, want 13", removed)
	}
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 20")
	// The group loses its offset, and everything from the third on is delivered again.
	b.resetOffsets(0, 3)
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	stop = b.consume(again)
	for offset := 3; offset < 20; offset++ {
		id, want := fmt.Sprintf("0-%03d", offset), Duplicate
		if offset < 13 {
			want = Stale
		}
		b.awaitOutcome(id, want)
	}
	stop()
	if n := b.count("select count(*) from effect"); n != 20 {
		t.Errorf("%d effects, want 20: an event was handled again", n)
	}
	if n := b.count("select count(*) from holdfast.letter where reason like 'stale%' and state = 'open'"); n != 10 {
		t.Errorf("%d letters, want 10", n)
	}
}

func TestAnEventWithoutAPositionIsKnownForTheWindowOnly(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '167 hours'`)
	b.pass(in, 10)
	b.receive(in, event("1", "k"), Duplicate)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '169 hours'`)
	b.pass(in, 10)
	b.receive(in, event("1", "k"), Handled)
	if n := b.effects("1"); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

func TestAReplayFindsTheRowOfAnOpenLetterHoweverOld(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("poison") })
	b.receive(in, event("1", ""), Retrying)
	stop := b.run(in.Run)
	b.awaitOutcome("1", Dead)
	stop()
	pgtest.Exec(t, b.db, `update holdfast.inbox set received_at = now() - interval '1 year', processed_at = now() - interval '1 year'`)
	b.pass(in, 10)
	b.receive(in, event("1", ""), Duplicate) // It is not handled beside its letter, which a person may replay.
	pgtest.Exec(t, b.db, `update holdfast.letter set state = 'discarded'`)
	if _, removed := b.pass(in, 10); removed != 1 {
		t.Errorf("%d rows were removed after the letter was closed, want 1", removed)
	}
}

func TestAWindowThatAHandlerCouldOutliveIsRefused(t *testing.T) {
	b := setup(t)
	_, err := New(b.db.Pool, Config{Consumer: "billing", Window: time.Minute, Timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "window is 1m0s: it must be longer than timeout and grace, 1m5s") {
		t.Errorf("got %v", err)
	}
}
