package inbox

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// fakeSource is a consumer group in memory. Its nodes may disagree about who has a partition, as they do around a pause.
type fakeSource struct {
	gens chan *fakeGeneration
}

func (s *fakeSource) Next(ctx context.Context) (source.Generation, error) {
	select {
	case g := <-s.gens:
		return g, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *fakeSource) Close() {}

type fakeGeneration struct {
	tp      source.TopicPartition
	from    int64
	group   string
	log     []source.Record
	gate    chan struct{} // where set, only the first record is there before it closes
	ended   chan struct{}
	left    chan struct{}
	once    sync.Once
	fail    atomic.Pointer[error]
	mu      sync.Mutex
	commits []int64
	reading context.Context // of the partition that fetches: it ends when that is told to stop
	ends    []int64         // what it says of the log's end, before it says the truth
	begun   chan struct{}   // where set, it is closed once all records have been given to the workers
}

func newFakeGeneration(log []source.Record) *fakeGeneration {
	return &fakeGeneration{tp: source.TopicPartition{Topic: "orders", Partition: 0}, from: source.NoOffset, log: log, ended: make(chan struct{}), left: make(chan struct{})}
}

func (g *fakeGeneration) Assigned() map[source.TopicPartition]source.Start {
	return map[source.TopicPartition]source.Start{g.tp: {Committed: g.from}}
}
func (g *fakeGeneration) GroupID() string       { return g.group }
func (g *fakeGeneration) Over() <-chan struct{} { return g.ended }
func (g *fakeGeneration) Leave()                { g.once.Do(func() { close(g.left) }) }
func (g *fakeGeneration) Bounds(context.Context, source.TopicPartition) (int64, int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := int64(len(g.log))
	if len(g.ends) > 0 {
		end, g.ends = g.ends[0], g.ends[1:]
	}
	return 0, end, nil
}

func (g *fakeGeneration) Fetch(ctx context.Context, _ source.TopicPartition, offset, _ int64) (source.Page, error) {
	g.mu.Lock()
	g.reading = ctx
	g.mu.Unlock()
	if err := g.fail.Load(); err != nil {
		return source.Page{}, *err
	}
	if g.gate != nil && offset == 0 {
		return source.Page{Records: g.log[:1], Next: 1}, nil
	}
	if g.gate != nil {
		select {
		case <-g.gate:
		case <-ctx.Done():
			return source.Page{}, ctx.Err()
		}
	}
	if offset < int64(len(g.log)) {
		return source.Page{Records: g.log[offset:], Next: int64(len(g.log))}, nil
	}
	g.mu.Lock()
	if g.begun != nil {
		close(g.begun)
		g.begun = nil
	}
	g.mu.Unlock()
	<-ctx.Done()
	return source.Page{}, ctx.Err()
}

func (g *fakeGeneration) Commit(_ context.Context, offsets map[source.TopicPartition]int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commits = append(g.commits, offsets[g.tp])
	return nil
}

func logOf(events ...holdfast.Event) []source.Record {
	log := make([]source.Record, len(events))
	for i, e := range events {
		log[i] = source.Record{Offset: int64(i), Key: []byte(e.Key), Value: e.Payload, Headers: wire.Headers([]source.Header(nil), e), Time: time.Unix(1, 0)}
	}
	return log
}

func (b *bundle) consumeFake(in *Inbox, gens ...*fakeGeneration) (stop func()) {
	s := &fakeSource{make(chan *fakeGeneration, len(gens))}
	for _, g := range gens {
		s.gens <- g
	}
	return b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, s) })
}

func TestFence_AZombieCannotCommitAfterAnotherHasThePartition(t *testing.T) {
	b := setup(t)
	log := logOf(event("1", "k"), event("2", "k"))
	paused, wake := make(chan struct{}), make(chan struct{})
	var once sync.Once

	zombie := b.inbox()
	zombie.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" { // It handles the first, and pauses between the two transactions.
			if err := effectOf(ctx, tx, e); err != nil {
				return err
			}
			return nil
		}
		t.Error("the zombie ran a handler")
		return nil
	})
	zombie.c.Observer.OnReceive = func(r Received) { once.Do(func() { close(paused) }) }
	between := newFakeGeneration(log)
	between.gate = wake
	b.consumeFake(zombie, between)
	<-paused

	owner := b.inbox()
	owner.Handle("order.placed", effectOf)
	b.consumeFake(owner, newFakeGeneration(log))
	b.awaitOutcome("2", Handled)
	pgtest.Exec(t, b.db, "delete from holdfast.inbox where event_id = '2'") // Only the fence is left to keep the zombie out.
	close(wake)
	b.await("the fence", func(o *observations) bool { return o.fenced == 1 })
	if n := b.count("select count(*) from effect"); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where position <= 2"); n != 1 {
		t.Error("the zombie changed the position")
	}
}

// Its session may have ended without its knowing, with nothing in hand whose transaction could be refused.
func TestFence_ANodeWithNothingInHandHearsThatItsPartitionIsAnothers(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := logOf(event("1", "k"))
	lost := b.inbox()
	lost.Handle("order.placed", effectOf)
	saved := make(chan struct{})
	lost.c.Observer.OnSettled = func(Assignment, int64) { close(saved) }
	g := newFakeGeneration(log)
	stop := b.consumeFake(lost, g)
	<-saved
	owner := b.inbox()
	owner.Handle("order.placed", effectOf)
	assigned := make(chan struct{})
	owner.c.Observer.OnAssigned = func(Assignment, int64) { close(assigned) }
	stopOwner := b.consumeFake(owner, newFakeGeneration(log))
	<-assigned
	stop()
	b.await("the fence", func(o *observations) bool { return o.fenced == 1 })
	if n := b.count("select count(*) from holdfast.consumer_position where not clean"); n != 1 {
		t.Error("the node that lost the partition says that its owner has ended in order")
	}
	stopOwner()
	b.await("no more of it", func(o *observations) bool { return o.fenced == 1 })
}

// The new owner waits for the transactions that have looked at the epoch, so that none of them commits after it began.
func TestFence_TheNextOwnerWaitsForTheHandlersOfTheLast(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	log := logOf(event("1", "k"), event("2", "k"))
	begun, finish := make(chan struct{}), make(chan struct{})
	last := b.inbox()
	last.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" {
			close(begun)
			<-finish
		}
		return effectOf(ctx, tx, e)
	})
	b.consumeFake(last, newFakeGeneration(log))
	<-begun
	next := b.inbox()
	next.Handle("order.placed", effectOf)
	assigned := make(chan struct{})
	next.c.Observer.OnAssigned = func(Assignment, int64) { close(assigned) }
	b.consumeFake(next, newFakeGeneration(log))
	// It waits for the lock: that is to be seen in Postgres.
	for b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and not granted and database = (select oid from pg_database where datname = current_database())", int64(position.FenceClass)) == 0 {
		select {
		case <-assigned:
			t.Fatal("the next owner did not wait")
		case <-time.After(time.Millisecond):
		}
	}
	close(finish)
	<-assigned
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from (select id, lag(id) over (order by n) before from effect) x where before >= id"); n != 0 || b.effects("1") != 1 {
		t.Error("effects are out of order, or double")
	}
}

func TestFence_TheCommittedOffsetStaysBelowAnUnsettledEvent(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	events := []holdfast.Event{event("0", "a"), event("1", "slow"), event("2", "b"), event("3", "c"), event("4", "slow")}
	begun, finish := make(chan struct{}), make(chan struct{})
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" {
			close(begun)
			<-finish
		}
		return effectOf(ctx, tx, e)
	})
	g := newFakeGeneration(logOf(events...))
	b.consumeFake(in, g)
	<-begun
	b.awaitOutcome("3", Handled) // Another key goes past the slow one.
	b.await("the position", func(o *observations) bool { return o.settled["orders/0"] == 1 })
	if b.effects("4") != 0 {
		t.Error("an event overtook the one of its key that is in hand")
	}
	g.mu.Lock()
	for _, offset := range g.commits { // What comes once it is finished may be any, as far as the others have come.
		if offset > 1 {
			t.Errorf("offset %d was committed while event 1 was in hand", offset)
		}
	}
	g.mu.Unlock()
	close(finish)
	b.await("the position", func(o *observations) bool { return o.settled["orders/0"] == 5 })
}

func TestFence_HungHandlersStopConsumeLoudly(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.Timeout, c.Grace, c.MaxHung, c.StopTimeout = 20*time.Millisecond, 20*time.Millisecond, 2, -1
	})
	release := make(chan struct{})
	defer close(release)
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { <-release; return nil })
	in.registry.start()
	gens := make(chan *fakeGeneration, 1)
	gens <- newFakeGeneration(logOf(event("1", "a"), event("2", "b"), event("3", "c")))
	if err := in.consume(b.Context(), &fakeSource{gens}); !errors.Is(err, ErrHungHandlers) {
		t.Errorf("consume returned %v, want ErrHungHandlers", err)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where not clean"); n != 1 {
		t.Error("the end of a partition with hung handlers is called clean")
	}
}

func TestFence_AfterAnUncleanEndStartsCountUntilTheLogsOldEnd(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)")
	in := b.inbox()
	var counted atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		counted.Add(b.count("select count(*) from holdfast.start where event_id = $1 and starts = 1", e.ID))
		return effectOf(ctx, tx, e)
	})
	g := newFakeGeneration(logOf(event("1", "a"), event("2", "b"), event("3", "c"), event("4", "d")))
	b.consumeFake(in, g)
	for _, id := range []string{"1", "2", "3", "4"} {
		b.awaitOutcome(id, Handled)
	}
	if counted.Load() != 4 {
		t.Errorf("%d starts counted, want 4", counted.Load())
	}
	if n := b.count("select count(*) from holdfast.start"); n != 0 {
		t.Errorf("%d counts were left behind", n)
	}
}

// Else a node that was frozen before a person deleted the row, or a failover took its assignment back, could save again.
func TestFence_NoEpochOfAPartitionComesTwice(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	given := map[int64]string{}
	for _, row := range []struct{ name, before string }{
		{"the first owner", "select"},
		{"the next", "select"},
		{"one after the row was deleted", "delete from holdfast.consumer_position"},
		{"one after a failover that took the last assignments back", "update holdfast.consumer_position set epoch = 1"},
		{"one whose clock is behind", "update holdfast.consumer_position set epoch = epoch + 3600000000"},
	} {
		pgtest.Exec(t, b.db, row.before)
		a, err := in.consumer.positions.Assign(t.Context(), "orders", 0, "", func(int64) (position.Reading, error) { return position.Reading{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		if other, again := given[a.Fence.Epoch]; again {
			t.Errorf("%s has the epoch of %s: %d", row.name, other, a.Fence.Epoch)
		}
		given[a.Fence.Epoch] = row.name
		if n := b.count("select count(*) from holdfast.consumer_position where epoch = $1", a.Fence.Epoch); n != 1 {
			t.Errorf("%s: the table has another epoch", row.name)
		}
	}
}
