package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Store cannot know what is before an event. A long queue of one key must not make every claim look at all of it: the first
// event that is settled puts those behind it to sleep, and each is handled in its turn nevertheless.
func TestSweep_ALongQueueOfStoreSleepsOnceItsFirstEventIsSettled(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	const n = 600
	in := b.inbox()
	var count, behind atomic.Int64 // behind: rows that were active while a later event than the first was handled, at most
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var active int64
		if err := tx.QueryRow(ctx, "select count(*) from holdfast.stored where next_at < 'infinity'").Scan(&active); err != nil {
			return err
		}
		if count.Add(1) == 1 {
			if active != n {
				t.Errorf("before the first was settled %d rows were active, want %d: the test shows nothing", active, n)
			}
		} else {
			behind.Store(max(behind.Load(), active))
		}
		return effectOf(ctx, tx, e)
	})
	for i := 0; i < n; i += 100 {
		err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
			for j := range 100 {
				if _, err := in.StoreTx(t.Context(), tx, event(fmt.Sprint(i+j), "k")); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	in.registry.start()
	stop := b.run(in.withoutSweeps) // A sweep, after some seconds, may come before the first is settled.
	b.await("all are handled", func(*observations) bool { return count.Load() == n })
	stop()
	if behind.Load() != 1 {
		t.Errorf("%d rows were active while later ones were handled, want the head alone", behind.Load())
	}
	if wrong := b.count("select count(*) from (select id, row_number() over (order by n) - 1 as place from effect) e where e.id::int <> e.place"); wrong != 0 {
		t.Errorf("%d events were handled out of their order", wrong)
	}
}

// Where the first event fails, or a letter holds the key, nothing of it is settled. What Store adds behind is put to sleep by
// the sweep: a few at a time, so that others get the key's lock, and each is handled once its turn comes.
func TestSweep_ALongQueueOfStoreIsDormantWhileItsKeySettlesNothing(t *testing.T) {
	skip.InShort(t, "it takes 27 s beside the others")
	b := setup(t)
	in := b.inbox()
	var handled atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		handled.Add(1)
		return effectOf(ctx, tx, e)
	})
	const n = 2500
	b.store(in, event("head", "k"))
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 1, next_at = now() + interval '1 hour'")
	pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, payload, next_at)
		select consumer, topic, key, nextval('holdfast.stored_place'), source, n::text, type, time, hash, payload, now()
		  from holdfast.stored, generate_series(1, $1) n`, n)
	b.store(in, event("alone", "another"))
	active := func() int64 { return b.count("select count(*) from holdfast.stored where next_at < 'infinity'") }
	if got := active(); got != n+2 {
		t.Fatalf("%d rows are active, want %d: the test shows nothing", got, n+2)
	}

	// 1. Whoever has the key's lock may be just taking its head away: it is not waited for.
	busy, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := busy.Exec(t.Context(), in.sql.lock, int32(lane.KeyClass), in.keyNumber("orders", "k")); err != nil {
		t.Fatal(err)
	}
	if err := in.sweeper.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got := active(); got != n+2 {
		t.Errorf("%d rows are active, want %d: another had the lock of their key", got, n+2)
	}
	if err := busy.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// 2. It takes several turns.
	if tag, err := b.db.Exec(t.Context(), in.sql.deferFollowers, "billing", "orders", "k"); err != nil || fmt.Sprint(tag.RowsAffected()) != deferMost {
		t.Errorf("%d rows were put to sleep at once, %v, want %s", tag.RowsAffected(), err, deferMost)
	}
	if err := in.sweeper.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got := active(); got != 2 {
		t.Errorf("%d rows are active, want the two heads", got)
	}

	// 3. All are handled, in their order.
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() where event_id = 'head'")
	stop := b.run(in.Run)
	b.await("all are handled", func(*observations) bool { return handled.Load() == n+2 })
	stop()
	if wrong := b.count("select count(*) from (select id::int as id, row_number() over (order by n) as place from effect where id not in ('head', 'alone')) e where id <> place"); wrong != 0 {
		t.Errorf("%d events were handled out of their order", wrong)
	}
}

// A replay must not become dormant, because nothing would resume it, nor an event that was tried: it has a time of its own.
func TestSweep_OnlyFollowersThatWereNeverTriedAreLulled(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for _, id := range []string{"head", "plain", "tried", "replay", "leased", "dormant"} {
		b.store(in, event(id, "k"))
	}
	b.store(in, event("other", "another"))
	for _, sql := range []string{
		"update holdfast.stored set attempts = 1, next_at = now() + interval '1 minute' where event_id = 'tried'",
		"update holdfast.stored set letter = 1 where event_id = 'replay'",
		"update holdfast.stored set lease_until = now() + interval '1 minute', lease_token = gen_random_uuid() where event_id = 'leased'",
		"update holdfast.stored set next_at = 'infinity' where event_id = 'dormant'",
	} {
		pgtest.Exec(t, b.db, sql)
	}
	tag, err := b.db.Exec(t.Context(), in.sql.deferFollowers, "billing", event("", "").Topic, "k")
	if err != nil || tag.RowsAffected() != 1 {
		t.Errorf("%d rows were put to sleep, %v, want 1", tag.RowsAffected(), err)
	}
	if n := b.count("select count(*) from holdfast.stored where next_at = 'infinity' and event_id not in ('plain', 'dormant')"); n != 0 {
		t.Errorf("%d rows sleep that must not", n)
	}
}
