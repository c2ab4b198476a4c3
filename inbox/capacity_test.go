package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
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

func newManyPartitions(logs ...[]source.Record) *manyPartitions {
	m := &manyPartitions{fakeGeneration: newFakeGeneration(logs[0])}
	for i, log := range logs[1:] {
		g := newFakeGeneration(log)
		g.tp.Partition = i + 1
		m.others = append(m.others, g)
	}
	return m
}

func (m *manyPartitions) of(tp source.TopicPartition) *fakeGeneration {
	if tp.Partition == 0 {
		return m.fakeGeneration
	}
	return m.others[tp.Partition-1]
}

func (m *manyPartitions) Next(ctx context.Context) (source.Generation, error) {
	if m.given.CompareAndSwap(false, true) {
		return m, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (m *manyPartitions) Close() {}

func (m *manyPartitions) Assigned() map[source.TopicPartition]source.Start {
	tps := m.fakeGeneration.Assigned()
	for _, g := range m.others {
		tps[g.tp] = source.Start{Committed: g.from}
	}
	return tps
}

func (m *manyPartitions) Bounds(ctx context.Context, tp source.TopicPartition) (int64, int64, error) {
	return m.of(tp).Bounds(ctx, tp)
}

func (m *manyPartitions) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	return m.of(tp).Fetch(ctx, tp, offset, maxBytes)
}

func (m *manyPartitions) Commit(context.Context, map[source.TopicPartition]int64) error { return nil }

// gatedLog gives the first records of its log, and the others when the test opens the gate.
type gatedLog struct {
	*fakeGeneration
	first  int64
	asked  chan struct{} // closed when the first have begun: the reader asks for the others
	once   sync.Once
	opened chan struct{}
}

func newGatedLog(first int, events []holdfast.Event) *gatedLog {
	return &gatedLog{fakeGeneration: newFakeGeneration(logOf(events...)), first: int64(first), asked: make(chan struct{}), opened: make(chan struct{})}
}

func (g *gatedLog) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if offset < g.first {
		return source.Page{Records: g.log[offset:g.first], Next: g.first}, nil
	}
	g.once.Do(func() { close(g.asked) })
	select {
	case <-g.opened:
		return g.fakeGeneration.Fetch(ctx, tp, offset, maxBytes)
	case <-ctx.Done():
		return source.Page{}, ctx.Err()
	}
}

// afterAll is a handler that waits until the first records have begun.
func (g *gatedLog) afterAll(h Handler) Handler {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		select {
		case <-g.asked:
			return h(ctx, tx, e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// consumeGated is consumeFake for one partition, which the test looks at.
func (b *bundle) consumeGated(in *Inbox, g *gatedLog) *partition {
	b.Helper()
	if err := in.registry.start(); err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(in.consumer.renew(b.Context()), in.pauses.look(b.Context(), b.db)); err != nil {
		b.Fatal(err)
	}
	b.run(in.Run)
	h := newOwned(nil)
	b.run(func(ctx context.Context) error {
		workers := newWorkerPool(in.receiver)
		workers.start()
		defer workers.end()
		return in.consumer.generation(ctx, g, workers, h)
	})
	<-g.asked
	return h.get(g.tp).partition
}

// stands opens the gate, and wants that none of the others begins. The reader stands when it has looked twice whether one may: the first
// of these looks may have begun before the gate was open.
func (b *bundle) stands(p *partition, g *gatedLog) {
	b.Helper()
	close(g.opened)
	for range 2 {
		p.free()
		wait.Until(b, "the reader looks whether more events may begin", func() bool {
			p.mu.Lock()
			next := p.track.Next
			p.mu.Unlock()
			if next > g.first {
				b.Fatalf("while the partition was held, the events up to offset %d have begun; the last that may is %d", next-1, g.first-1)
			}
			return len(p.freed) == 0
		})
	}
}

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

func (b *roomBundle) consumeMany(in *Inbox, logs ...[]source.Record) (stop func()) {
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

func TestCapacity_EventsWithoutRoomHoldTheirPartitionAndNoWorker(t *testing.T) {
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

func TestCapacity_AnEventWithoutRoomIsSettledInItsOrderAsSoonAsThereIsRoom(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupRoom(t)
	b.in.c.BatchSize = 10
	events := fullLog(4)
	first := len(events)
	for i := range events {
		if i%3 == 0 { // A batch in which there is no room for one is taken apart.
			events[i].Type = "order.paid"
		}
	}
	for i := range 300 {
		e := event(fmt.Sprintf("later-%05d", i), fmt.Sprintf("key %d", i%9))
		if i%2 == 0 {
			e.Type = "order.paid"
		}
		events = append(events, e)
	}
	g := newGatedLog(first, events)
	handle := g.afterAll(b.handle)
	b.in.HandleBatch("order.paid", func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
		for _, e := range es {
			if err := handle(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	b.in.registry.handlers["order.placed"] = func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error { return handle(ctx, tx, es[0]) }
	p := b.consumeGated(b.in, g)
	b.awaitFull(4)
	b.stands(p, g)
	b.failing.Store(false)
	b.await("all of them", func(o *observations) bool { return o.settled["orders/0"] == int64(len(events)) })
	b.nothingStored()
	b.inOrderAndOnce(len(events))
}

func TestCapacity_APartitionBeginsNoMoreEventsWhileOneFindsNoRoom(t *testing.T) {
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

// A reader begins an event after the other, until there are too many: in progress, after one that is not settled, or in memory; or until
// one finds no room. It goes on as soon as the first is settled.
func TestCapacity_HowManyEventsOfAPartitionMayBegin(t *testing.T) {
	t.Parallel()
	const all = 20_000
	in := newInbox(nil, Config{Consumer: "billing"}.withDefaults())
	for _, row := range []struct {
		name    string
		bytes   int64 // of each
		settles bool  // all but the first
		refused int
		want    int64
		more    bool // begins when the first is settled
	}{
		{"nothing is settled", 1, false, 0, 1024, true},
		{"the first is not settled", 1, true, 0, 16_384, true},
		{"they are large", in.consumer.memory.Share()/10 + 1, false, 0, 10, true},
		{"one finds no room", 1, true, 1, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := in.consumer.newPartition(newWorkerPool(in.receiver), nil, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{})
				p.track, p.atCapacity.refused = readahead.NewTracker(0), row.refused
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				settle := func(offset int64) { p.settle(&delivery{from: &origin{offset: offset}}) }
				begun := int64(0)
				go func() {
					for begun < all && p.awaitCapacity(ctx, nil) {
						p.mu.Lock()
						p.track.Begin(begun, row.bytes, readahead.Reservation{}, 0)
						p.mu.Unlock()
						if begun++; row.settles && begun > 1 {
							settle(begun - 1)
						}
					}
				}()
				synctest.Wait()
				if begun != row.want {
					t.Errorf("%d events have begun, want %d", begun, row.want)
				}
				if begun > 0 {
					settle(0)
				}
				synctest.Wait()
				if row.more != (begun > row.want) {
					t.Errorf("when the first was settled, %d events had begun; before it was %d", begun, row.want)
				}
			})
		})
	}
}

// The worker has the follower in hand already when the COMMIT before it fails.
func TestCapacity_WhatFollowsAnEventThatFailsAtCommitWaitsWithItForRoom(t *testing.T) {
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

func TestCapacity_AFailedHandlerIsNotRunAgainForWantOfRoom(t *testing.T) {
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

func TestCapacity_AnEventWithoutRoomLetsOtherPartitionsGoOn(t *testing.T) {
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

func TestCapacity_AStopDoesNotWaitForQuickTries(t *testing.T) {
	b := setupRoom(t, func(c *Config) { c.ImmediateRetries = 100; c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour })
	stop := b.consumeMany(b.in, logOf(event("1", "full 1")))
	b.await("quick tries", func(o *observations) bool { return len(o.retries) >= 5 })
	b.stopsSoon(stop)
	b.observed.mu.Lock()
	made := len(b.observed.retries) - 1 // The last tells that it is stored.
	b.observed.mu.Unlock()
	if n := b.count("select count(*) from holdfast.stored where attempts = $1 and cardinality(errors) = $2", made, min(made, failure.MaxErrors)); n != 1 {
		t.Errorf("it is not stored with its %d attempts", made)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where position = 1 and clean"); n != 1 {
		t.Error("the position has not passed it")
	}
}

func TestCapacity_AStopDoesNotWaitForADatabaseThatIsAway(t *testing.T) {
	b := setupRoom(t)
	stop := make(chan struct{})
	close(stop)
	in := b.in.newIntake(b.in.registry.newDelivery(event("1", "k")), nil, stop)
	in.next = func(context.Context) (Outcome, error) {
		return "", &failure.Error{Fault: failure.FaultDatabase, Err: errors.New("connection refused")}
	}
	if out, err := b.in.receiver.receive(t.Context(), in, nil); !errors.Is(err, errStopping) {
		t.Errorf("receive returned %q, %v", out, err)
	}
}
