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

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/retention"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// retain makes turns of retention until there is nothing more to do, and says how many rows it removed.
func (b *bundle) retain(in *Inbox) (removed int) {
	b.Helper()
	pgtest.Exec(b, b.db, "update holdfast.retention set next_at = '-infinity', from_at = null") // whatever the last one asked for
	for {
		turn, err := in.retention.Turn(b.Context(), 1000, false)
		if err != nil {
			b.Fatalf("turn: %v", err)
		}
		removed += turn.Removed
		if turn.Read < 1000 && !turn.More {
			return removed
		}
		pgtest.Exec(b, b.db, "update holdfast.retention set next_at = '-infinity'")
	}
}

// TestRetention_RetentionOnFourNodesRemovesAllThatIsDueAndNoMore also has a transaction that locks rows in
// another order, as replays and batches do.
func TestRetention_RetentionOnFourNodesRemovesAllThatIsDueAndNoMore(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	b := setup(t)
	const due, held = 30_000, 500
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, $1)`, due/2)
	rows.Settled(t, b.db, "http-", nil, due/2)
	rows.Settled(t, b.db, "kafka-", 0, due/2+held)
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
				_, err := in.retention.Turn(ctx, 500, false)
				if err != nil && !errors.Is(err, retention.ErrNotOurTurn) && ctx.Err() == nil {
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

func TestRetention_RunRemovesOldRowsByItselfAndTellsTheObserver(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	rows.Settled(t, b.db, "http-", nil, 300)
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

func TestRetention_AnErrorOfRetentionIsReportedAndRunGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	rows.Settled(t, b.db, "http-", nil, 10)
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

func TestRetention_ARecordAgainAfterItsRowWasRemovedIsStale(t *testing.T) {
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
	if removed := b.retain(in); removed != 13 {
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

func TestRetention_AnEventWithoutAPositionIsKnownForTheWindowOnly(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '167 hours'`)
	b.retain(in)
	b.receive(in, event("1", "k"), Duplicate)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '169 hours'`)
	b.retain(in)
	b.receive(in, event("1", "k"), Handled)
	if n := b.effects("1"); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

// Run makes the turns of every source.
func TestRetention_AnEventOfASourceIsKnownAsLongAsItsSourceSays(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.SourceRetention = map[string]time.Duration{"stripe": 30 * 24 * time.Hour, "clicks": time.Hour}
	})
	in.Handle("order.placed", effectOf)
	of := func(source string) holdfast.Event {
		e := event(source, "k")
		e.Source = source
		return e
	}
	for _, source := range []string{"shop", "stripe", "clicks"} {
		b.receive(in, of(source), Handled)
	}
	for _, c := range []struct{ age, left string }{
		{"59 minutes", "clicks shop stripe"}, {"61 minutes", "shop stripe"}, {"167 hours", "shop stripe"},
		{"169 hours", "stripe"}, {"719 hours", "stripe"}, {"721 hours", ""},
	} {
		pgtest.Exec(t, b.db, "update holdfast.inbox set processed_at = now() - $1::interval", c.age)
		pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
		left := func() string {
			return pgtest.Text(t, b.db, "select coalesce(string_agg(event_id, ' ' order by event_id), '') from holdfast.inbox")
		}
		stop := b.run(in.Run)
		wait.Until(t, "what is too old goes", func() bool { return left() == c.left })
		stop()
		b.retain(in) // A turn on a busy machine may have had no time for all sources; this has.
		if left := left(); left != c.left {
			t.Errorf("after %s %q are left, want %q", c.age, left, c.left)
		}
	}
	b.receive(in, of("stripe"), Handled)
}

func TestRetention_AReplayFindsTheRowOfAnOpenLetterHoweverOld(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("poison") })
	b.receive(in, event("1", ""), Retrying)
	stop := b.run(in.Run)
	b.awaitOutcome("1", Dead)
	stop()
	pgtest.Exec(t, b.db, `update holdfast.inbox set received_at = now() - interval '1 year', processed_at = now() - interval '1 year'`)
	b.retain(in)
	b.receive(in, event("1", ""), Duplicate) // It is not handled beside its letter, which a person may replay.
	pgtest.Exec(t, b.db, `update holdfast.letter set state = 'discarded'`)
	if removed := b.retain(in); removed != 1 {
		t.Errorf("%d rows were removed after the letter was closed, want 1", removed)
	}
}

func TestRetention_AWindowThatAHandlerCouldOutliveIsRefused(t *testing.T) {
	b := setup(t)
	_, err := New(b.db.Pool, Config{Consumer: "billing", Retention: time.Minute, Timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "retention is 1m0s: it must be longer than timeout and grace, 1m5s") {
		t.Errorf("got %v", err)
	}
	_, err = New(b.db.Pool, Config{Consumer: "billing", Timeout: time.Minute, SourceRetention: map[string]time.Duration{"b": time.Minute, "a": time.Second, "": time.Hour, "c": time.Hour}})
	for _, want := range []string{
		"source retention: source is empty: it must have 1 to 255 bytes",
		`source retention of "a" is 1s: it must be at least 1m, and longer than a redelivery can be late`,
		`source retention of "b" is 1m0s: it must be longer than timeout and grace, 1m5s: a row's age counts from before its handler ran`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), `"c"`) {
		t.Errorf("an hour is refused: %v", err)
	}
	many := map[string]time.Duration{}
	for n := range mostSourceRetentions + 1 {
		many[fmt.Sprint(n)] = time.Hour
	}
	if _, err := New(b.db.Pool, Config{Consumer: "billing", SourceRetention: many}); err == nil || !strings.Contains(err.Error(), "source retention has 65 sources: it must have at most 64") {
		t.Errorf("65 sources: %v", err)
	}
}
