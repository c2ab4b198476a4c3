package inbox

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Else a payload that kills its process would be started once more, uncounted, after every hand-over.
func TestSerial_AnOwnerThatStopsLeavesTheRestOfAnUncleanEnd(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)`)
	log := logOf(event("0", "a"), event("1", "b"), event("2", "c"))
	for _, row := range []struct {
		name     string
		all      bool // the owner gets past what may have been in hand
		position int64
		orderly  int64
	}{
		{"an owner that gets to the first event only", false, 1, 0},
		{"another", false, 1, 0},
		{"one that gets to the end", true, 3, 1},
		{"one that finds nothing left", true, 3, 1},
	} {
		pgtest.Exec(t, b.db, "update holdfast.consumer_position set clean = false")
		in := b.inbox()
		in.Handle("order.placed", effectOf)
		assigned := make(chan struct{})
		in.c.Observer.OnAssigned = func(Assignment, int64) { close(assigned) }
		g := newFakeGeneration(log)
		if !row.all {
			g.gate = make(chan struct{})
		}
		stop := b.consumeFake(in, g)
		<-assigned
		b.awaitSettled(row.position)
		stop()
		if n := b.count("select count(*) from holdfast.consumer_position where clean"); n != row.orderly {
			t.Errorf("%s: %d partitions were left in order, want %d", row.name, n, row.orderly)
		}
		if n := b.count("select position from holdfast.consumer_position"); n != row.position {
			t.Errorf("%s: it is at %d, want %d", row.name, n, row.position)
		}
	}
}

// A deploy, or a group that rebalances often, must not make a letter of an event that takes longer than Config.StopTimeout.
func TestSerial_AStartHandedBackInOrderIsNoEndOfTheProcess(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)`)
	log := logOf(event("slow", "k"))
	for range 2 * b.config().Retry.Attempts {
		in := b.inbox(func(c *Config) { c.StopTimeout = -1 })
		begun := make(chan struct{}, 1)
		in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			b.observed.record(func() { begun <- struct{}{} })
			<-ctx.Done()
			return ctx.Err()
		})
		stop := b.consumeFake(in, newFakeGeneration(log))
		b.await("its handler", func(o *observations) bool { return len(begun) > 0 || len(o.outcomes["slow"]) > 0 })
		if len(begun) == 0 {
			t.Fatal("it came to an end without its handler, though the process never ended")
		}
		if n := b.count("select starts from holdfast.start where event_id = 'slow'"); n != 1 {
			t.Fatalf("%d starts are counted while it is in hand, want 1: it may end the process", n)
		}
		stop()
		if n := b.count("select starts from holdfast.start where event_id = 'slow'"); n != 0 {
			t.Fatalf("%d starts are counted after it was handed back", n)
		}
	}
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitOutcome("slow", Handled)
	if n := b.count("select count(*) from holdfast.start"); n != 0 {
		t.Error("its count was left behind")
	}
}

// A stop that comes while a start is being counted: nobody will run it.
func TestSerial_AStartWhoseCountHadNoAnswerBeforeTheStopIsTakenBack(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)`)
	g := newFakeGeneration(logOf(event("1", "k")))
	s, pool := b.struckAt("inbox.start", func(_ context.Context, conn net.Conn, p []byte) (int, error) {
		if n, err := conn.Read(p); err != nil { // Postgres has carried it out.
			return n, err
		}
		close(g.ended)
		g.mu.Lock()
		reading := g.reading
		g.mu.Unlock()
		<-reading.Done() // The partition is notified.
		return 0, errors.New("the answer is lost")
	})
	s.armed.Store(true)
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	b.consumeFake(in, g)
	<-g.left
	if !s.struck.Load() {
		t.Fatal("no start was counted")
	}
	if n := b.count("select coalesce(sum(starts), 0) from holdfast.start"); n != 0 {
		t.Errorf("%d starts are counted, and none was made", n)
	}
}

func TestSerial_AnEventWithoutRoomIsCountedOnceAfterAnUncleanEnd(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupRoom(t, func(c *Config) { c.Retry.Attempts = 3 })
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)`)
	b.store(b.in, event("before", "full 0"))
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() + interval '1 hour'")
	log := logOf(event("full-1", "full 0"))
	owner := func() *Inbox {
		in := b.inbox(func(c *Config) { *c = b.in.c })
		in.Handle("order.placed", b.handle)
		return in
	}
	for n := range 2 * b.in.c.Retry.Attempts {
		stop := b.consumeFake(owner(), newFakeGeneration(log))
		b.await("an owner that finds no room", func(o *observations) bool { return b.full["full-1"] > n || len(o.outcomes["full-1"]) > 0 })
		b.stopsSoon(stop)
		b.observed.mu.Lock()
		b.full["full-1"] = n + 1
		outcomes := b.observed.outcomes["full-1"]
		b.observed.mu.Unlock()
		if len(outcomes) > 0 {
			t.Fatalf("it became %q though its handler never ran", outcomes)
		}
	}
	if n := b.count("select starts from holdfast.start where event_id = 'full-1'"); n != 0 {
		t.Errorf("%d starts are counted, want none", n)
	}
	b.failing.Store(false)
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now()")
	b.consumeFake(owner(), newFakeGeneration(log))
	b.awaitOutcome("before", Handled)
	b.awaitOutcome("full-1", Handled)
}

// Postgres may have carried a statement out whose answer is lost: then it is asked again, and an event that was started once
// must not look as if it had ended its process twice.
func TestSerial_AStartIsCountedOnceHoweverOftenItIsAskedFor(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.registry.start()
	counts := func(d *delivery, want int) {
		t.Helper()
		if starts, known, err := in.receiver.ledger.starts.count(b.Context(), d); starts != want || known || err != nil {
			t.Errorf("%d starts, want %d; known: %v, %v", starts, want, known, err)
		}
	}
	first := in.registry.newDelivery(event("1", "k"))
	counts(first, 1)
	counts(first, 1)
	second := in.registry.newDelivery(event("1", "k")) // of the process that comes after
	counts(second, 2)
	counts(second, 2)
	in.receiver.ledger.starts.takeBack(b.Context(), second)
	again := in.registry.newDelivery(event("1", "k"))
	again.start = 2
	in.receiver.ledger.starts.takeBack(b.Context(), again) // the same, asked again
	counts(in.registry.newDelivery(event("1", "k")), 2)
}
