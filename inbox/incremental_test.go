package inbox

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// changingGeneration is a generation whose partitions come and go. It is the only one of its session.
type changingGeneration struct {
	logs    map[source.TopicPartition][]source.Record
	changes chan source.Change
	over    chan struct{}
	steps   chan string // what the inbox tells the group

	mu        sync.Mutex
	committed map[source.TopicPartition]int64
}

func partitionNumber(n int) source.TopicPartition {
	return source.TopicPartition{Topic: "orders", Partition: n}
}

func newChangingGeneration(logs ...[]source.Record) *changingGeneration {
	g := &changingGeneration{logs: map[source.TopicPartition][]source.Record{}, changes: make(chan source.Change), over: make(chan struct{}), steps: make(chan string, 10), committed: map[source.TopicPartition]int64{}}
	for n, log := range logs {
		g.logs[partitionNumber(n)] = log
	}
	return g
}

func (g *changingGeneration) Next(ctx context.Context) (source.Generation, error) {
	select {
	case g.steps <- "joined":
	default:
	}
	return g, ctx.Err()
}
func (g *changingGeneration) Close() {}

func (g *changingGeneration) Assigned() map[source.TopicPartition]source.Start {
	return map[source.TopicPartition]source.Start{partitionNumber(0): {Committed: source.NoOffset}, partitionNumber(1): {Committed: source.NoOffset}}
}
func (g *changingGeneration) Over() <-chan struct{}         { return g.over }
func (g *changingGeneration) Changes() <-chan source.Change { return g.changes }
func (g *changingGeneration) Leave()                        { g.steps <- "left" }
func (g *changingGeneration) Release(of []source.TopicPartition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, tp := range of {
		if tp != partitionNumber(1) || g.committed[tp] != 1 {
			g.steps <- "released something else, or before its offset was committed"
			return
		}
	}
	g.steps <- "released"
}
func (g *changingGeneration) Bounds(_ context.Context, tp source.TopicPartition) (int64, int64, error) {
	return 0, int64(len(g.logs[tp])), nil
}
func (g *changingGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, _ int64) (source.Page, error) {
	if log := g.logs[tp]; offset < int64(len(log)) {
		return source.Page{Records: slices.Clone(log[offset : offset+1]), Next: offset + 1}, nil
	}
	<-ctx.Done()
	return source.Page{}, ctx.Err()
}
func (g *changingGeneration) Commit(_ context.Context, offsets map[source.TopicPartition]int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tp, offset := range offsets {
		g.committed[tp] = offset
	}
	return nil
}

// expect waits for the next step.
func (g *changingGeneration) expect(t *testing.T, want string) {
	t.Helper()
	if got := <-g.steps; got != want {
		t.Fatalf("the next step is %q, want %q", got, want)
	}
}

func TestIncremental_OnlyThePartitionsThatMoveStop(t *testing.T) {
	b := setup(t)
	running, finish := make(chan struct{}), make(chan struct{})
	hold := make(chan struct{})
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		switch e.ID {
		case "1/0": // of the partition that moves
			close(running)
			<-finish
		case "0/0": // of one that stays
			<-hold
		}
		return effectOf(ctx, tx, e)
	})
	var mu sync.Mutex
	revoked := map[int]int{}
	in.c.Observer.OnRevoked = func(p Assignment, clean bool) {
		mu.Lock()
		defer mu.Unlock()
		revoked[p.Partition]++
	}
	g := newChangingGeneration(logOf(event("0/0", "a"), event("0/1", "a")), logOf(event("1/0", "b"), event("1/1", "b")), logOf(event("2/0", "c")))
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	g.expect(t, "joined")
	<-running
	g.changes <- source.Change{Revoked: []source.TopicPartition{partitionNumber(1)}}
	g.changes <- source.Change{Added: map[source.TopicPartition]source.Start{partitionNumber(2): {Committed: source.NoOffset}}} // it is taken while the other's handler runs
	b.awaitOutcome("2/0", Handled)
	close(hold)
	b.awaitOutcome("0/1", Handled)
	select {
	case step := <-g.steps:
		t.Errorf("before the handler of the partition that moves has ended, the inbox has %s", step)
	default:
	}
	close(finish)
	g.expect(t, "released")
	b.awaitOutcome("1/0", Handled)
	if n := b.count("select count(*) from holdfast.inbox where event_id = '1/1'"); n != 0 {
		t.Error("an event of the partition that moved began after it was asked back")
	}
	mu.Lock()
	if len(revoked) != 1 || revoked[1] != 1 {
		t.Errorf("the partitions that stopped are %v, want partition 1 alone", revoked)
	}
	mu.Unlock()
	stop()
	g.expect(t, "left")
}
