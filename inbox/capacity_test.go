package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// manyPartitions is a generation of several partitions, and the source that gives it out.
type manyPartitions struct {
	*fakeGeneration // of partition 0
	others          []*fakeGeneration
	given           atomic.Bool
}

func newManyPartitions(logs ...[]Record) *manyPartitions {
	m := &manyPartitions{fakeGeneration: newFakeGeneration(logs[0])}
	for i, log := range logs[1:] {
		g := newFakeGeneration(log)
		g.tp.Partition = i + 1
		m.others = append(m.others, g)
	}
	return m
}

func (m *manyPartitions) of(tp TopicPartition) *fakeGeneration {
	if tp.Partition == 0 {
		return m.fakeGeneration
	}
	return m.others[tp.Partition-1]
}

func (m *manyPartitions) Next(ctx context.Context) (Generation, error) {
	if m.given.CompareAndSwap(false, true) {
		return m, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m *manyPartitions) Close() {}

func (m *manyPartitions) Assigned() map[TopicPartition]Start {
	tps := m.fakeGeneration.Assigned()
	for _, g := range m.others {
		tps[g.tp] = Start{Committed: g.from}
	}
	return tps
}

func (m *manyPartitions) Bounds(ctx context.Context, tp TopicPartition) (int64, int64, error) {
	return m.of(tp).Bounds(ctx, tp)
}

func (m *manyPartitions) Fetch(ctx context.Context, tp TopicPartition, offset, maxBytes int64) (Page, error) {
	return m.of(tp).Fetch(ctx, tp, offset, maxBytes)
}

func (m *manyPartitions) Commit(context.Context, map[TopicPartition]int64) error { return nil }

// roomBundle is an inbox whose keys "full …" have no room: their first event is stored and fails, and one may be stored.
type roomBundle struct {
	*bundle
	in      *Inbox
	failing atomic.Bool
	full    map[string]int // tries that found no room, by event id
}

func setupRoom(t *testing.T, change ...func(*Config)) *roomBundle {
	t.Helper()
	b := &roomBundle{bundle: setup(t), full: map[string]int{}}
	b.failing.Store(true)
	b.in = b.inbox(append([]func(*Config){func(c *Config) {
		c.Workers, c.MaxStoredKey, c.StopTimeout = 2, 1, time.Minute
		c.Retry = retry.Policy{Attempts: 1_000_000, Base: 20 * time.Millisecond, Cap: 20 * time.Millisecond}
		c.Observer.OnFull = func(e holdfast.Event, err error) {
			if !errors.Is(err, ErrFull) {
				t.Errorf("OnFull got %v", err)
			}
			b.observed.record(func() { b.full[e.ID]++ })
		}
	}}, change...)...)
	b.in.Handle("order.placed", b.handle)
	return b
}

func (b *roomBundle) handle(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	if len(e.Key) > 4 && e.Key[:4] == "full" && b.failing.Load() {
		return errors.New("not yet")
	}
	return effectOf(ctx, tx, e)
}

func (b *roomBundle) awaitFull(n int) {
	b.Helper()
	b.await(fmt.Sprintf("%d events that find no room", n), func(*observations) bool { return len(b.full) >= n })
}

func (b *roomBundle) consumeMany(in *Inbox, logs ...[]Record) (stop func()) {
	return b.run(func(ctx context.Context) error {
		in.registry.start()
		return in.consume(ctx, newManyPartitions(logs...))
	})
}

// stopsSoon stops a consumer that may take Config.StopTimeout, a minute, for what it has in hand.
func (b *roomBundle) stopsSoon(stop func()) {
	b.Helper()
	begun := time.Now()
	stop()
	if took := time.Since(begun); took > 50*time.Second && !testing.Short() {
		b.Errorf("the stop took %s", took)
	}
}

// fullLog is a log of n keys with three events each, of which no more than the first finds room.
func fullLog(n int) []holdfast.Event {
	events := make([]holdfast.Event, 0, 3*n)
	for round := range 3 {
		for key := range n {
			events = append(events, event(fmt.Sprintf("full-%d-%02d", round, key), fmt.Sprintf("full %d", key)))
		}
	}
	return events
}

func TestEventsWithoutRoomHoldTheirPartitionAndNoWorker(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setupRoom(t, func(c *Config) { c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	const keys = 6 // three times as many as there are workers
	log, other := logOf(fullLog(keys)...), keyed(200, 20)
	gated := newManyPartitions(log, logOf(other...))
	gated.others[0].gate = make(chan struct{})
	stop := b.run(func(ctx context.Context) error { b.in.registry.start(); return b.in.consume(ctx, gated) })
	b.awaitFull(2) // Both workers have met one.
	close(gated.others[0].gate)
	b.await("the other partition", func(o *observations) bool { return o.settled["orders/1"] == 200 })
	b.awaitFull(keys)
	b.await("another try of each", func(*observations) bool {
		for _, n := range b.full {
			if n < 2 {
				return false
			}
		}
		return true
	})
	b.stopsSoon(stop)
	if n := b.count("select count(*) from holdfast.inbox where event_id like 'full-%'"); n != keys {
		t.Errorf("%d events that found no room, or came behind one, left a row", n-keys)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where partition = 0 and position = $1 and clean", keys); n != 1 {
		t.Error("the position is not at the first event without room")
	}

	b.failing.Store(false) // The next owner meets them again, and there is room by and by.
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now()")
	next := b.inbox(func(c *Config) { *c = b.in.c })
	next.Handle("order.placed", b.handle)
	b.consumeMany(next, log, logOf(other...))
	b.await("all of them", func(o *observations) bool { return o.settled["orders/0"] == 3*keys })
	b.nothingStored()
	b.inOrderAndOnce(3*keys + 200)
}

func TestAnEventWithoutRoomIsSettledInItsOrderAsSoonAsThereIsRoom(t *testing.T) {
	skip.InShort(t, "it takes 43 s beside the others")
	b := setupRoom(t)
	b.in.HandleBatch("order.paid", func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
		for _, e := range es {
			if err := b.handle(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	b.in.c.BatchSize = 10
	events := fullLog(4)
	for i := range events {
		if i%3 == 0 { // A batch in which there is no room for one is taken apart.
			events[i].Type = "order.paid"
		}
	}
	for i := range maxSpread + 3000 { // More than what may be begun after an event that is not settled.
		e := event(fmt.Sprintf("later-%05d", i), fmt.Sprintf("key %d", i%9))
		if i%2 == 0 {
			e.Type = "order.paid"
		}
		events = append(events, e)
	}
	b.consumeMany(b.in, logOf(events...))
	b.awaitFull(1)
	b.awaitFull(4)
	b.await("those in hand", func(o *observations) bool { return len(o.outcomes["later-00000"]) > 0 })
	if wait.For(time.Second, func() bool { return b.count("select count(*) from effect") > 4+maxSpread }) {
		t.Error("more than what may be begun is handled while the partition is held")
	}
	b.failing.Store(false)
	b.await("all of them", func(o *observations) bool { return o.settled["orders/0"] == int64(len(events)) })
	b.nothingStored()
	b.inOrderAndOnce(len(events))
}

func TestAPartitionBeginsNoMoreEventsWhileOneFindsNoRoom(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupRoom(t, func(c *Config) { c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	b.receive(b.in, event("before", "full 0"), Retrying)
	log := append([]holdfast.Event{event("full-1", "full 0")}, keyed(10, 10)...)
	g := newFakeGeneration(logOf(log...))
	g.gate = make(chan struct{})
	b.consumeFake(b.in, g)
	b.awaitFull(1)
	close(g.gate)
	b.await("another try", func(*observations) bool { return b.full["full-1"] >= 2 })
	if n := b.count("select count(*) from holdfast.inbox"); n != 1 {
		t.Errorf("%d events were begun", n-1)
	}
	b.failing.Store(false)
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now()")
	b.awaitSettled(11)
}

// The worker has the follower in hand already when the COMMIT before it fails.
func TestWhatFollowsAnEventThatFailsAtCommitWaitsWithItForRoom(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setupRoom(t, func(c *Config) { c.MaxStored = 1; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	pgtest.Exec(t, b.db, "create table deferred (n int unique deferrable initially deferred)")
	b.receive(b.in, event("before", "full 0"), Retrying)
	b.in.registry.handlers["order.placed"] = func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
		if es[0].ID == "1" {
			if _, err := tx.Exec(ctx, "insert into deferred values (1), (1)"); err != nil {
				return err
			}
		}
		return effectOf(ctx, tx, es[0])
	}
	b.consumeMany(b.in, logOf(event("1", "k"), event("2", "k"), event("3", "k"), event("4", "other")))
	b.awaitFull(1)
	b.awaitOutcome("4", Handled)
	b.await("another try", func(*observations) bool { return b.full["1"] >= 2 })
	if n := b.count("select count(*) from effect where key = 'k'"); n != 0 {
		t.Errorf("%d events overtook the one that waits for room", n)
	}
	pgtest.Exec(t, b.db, "delete from holdfast.stored")
	b.awaitOutcome("1", Retrying)
}

func TestAFailedHandlerIsNotRunAgainForWantOfRoom(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setupRoom(t, func(c *Config) {
		c.MaxStored, c.ImmediateRetries = 1, 1
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
	})
	b.receive(b.in, event("first", "full 1"), Retrying)
	var tries atomic.Int64
	b.in.registry.handlers["order.placed"] = func(context.Context, pgx.Tx, []holdfast.Event) error {
		return fmt.Errorf("attempt %d: not yet", tries.Add(1))
	}
	b.consumeMany(b.in, logOf(event("second", "full 2")))
	b.await("tries", func(*observations) bool { return b.full["second"] >= 2 })
	pgtest.Exec(t, b.db, "delete from holdfast.stored")
	b.awaitOutcome("second", Retrying)
	if n := tries.Load(); n != 2 {
		t.Errorf("its handler ran %d times, want 2", n)
	}
	if n := b.count("select count(*) from holdfast.stored where attempts = 2 and errors = '{attempt 1: not yet,attempt 2: not yet}'"); n != 1 {
		t.Error("its attempts were forgotten while it waited")
	}
}

func TestAnEventWithoutRoomLetsOtherPartitionsGoOn(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupRoom(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean)
		values ('billing', 'orders', 0, 0, false), ('billing', 'orders', 1, 0, false)`)
	pgtest.Exec(t, b.db, "insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', 'full-1', 1)") // It runs alone.
	b.receive(b.in, event("before", "full 0"), Retrying)
	gated := newManyPartitions(logOf(event("full-1", "full 0"), event("2", "k")), logOf(keyed(20, 5)...))
	gated.others[0].gate = make(chan struct{})
	stop := b.run(func(ctx context.Context) error { b.in.registry.start(); return b.in.consume(ctx, gated) })
	b.awaitFull(1)
	close(gated.others[0].gate)
	b.await("the other partition", func(o *observations) bool { return o.settled["orders/1"] == 20 })
	b.stopsSoon(stop)
	if n := b.count("select count(*) from holdfast.inbox where event_id in ('full-1', '2')"); n != 0 {
		t.Error("the event without room, or the one behind it, left a row")
	}
}

func TestAStopDoesNotWaitForQuickTries(t *testing.T) {
	b := setupRoom(t, func(c *Config) { c.ImmediateRetries = 100; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	stop := b.consumeMany(b.in, logOf(event("1", "full 1")))
	b.await("quick tries", func(o *observations) bool { return len(o.retries) >= 5 })
	b.stopsSoon(stop)
	b.observed.mu.Lock()
	made := len(b.observed.retries) - 1 // The last tells that it is stored.
	b.observed.mu.Unlock()
	if n := b.count("select count(*) from holdfast.stored where attempts = $1 and cardinality(errors) = $2", made, min(made, maxErrors)); n != 1 {
		t.Errorf("it is not stored with its %d attempts", made)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where position = 1 and clean"); n != 1 {
		t.Error("the position has not passed it")
	}
}

func TestAStopDoesNotWaitForADatabaseThatIsAway(t *testing.T) {
	b := setupRoom(t)
	stop := make(chan struct{})
	close(stop)
	in := b.in.newIntake(b.in.registry.newDelivery(event("1", "k")), nil, stop)
	in.next = func(context.Context) (Outcome, error) {
		return "", &failure{faultDatabase, errors.New("connection refused")}
	}
	if out, err := b.in.receiver.receive(t.Context(), in, nil); !errors.Is(err, errStopping) {
		t.Errorf("receive returned %q, %v", out, err)
	}
}
