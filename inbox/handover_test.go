package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// growingGeneration begins with partition 0. Partition 1 has one event, which has not begun when the group wants it back.
type growingGeneration struct {
	*changingGeneration
	read chan struct{} // the event of partition 1 is with the workers
}

func newGrowingGeneration(logs ...[]source.Record) *growingGeneration {
	return &growingGeneration{newChangingGeneration(logs...), make(chan struct{})}
}

func (g *growingGeneration) Next(ctx context.Context) (source.Generation, error) { return g, ctx.Err() }

func (g *growingGeneration) Assigned() map[source.TopicPartition]source.Start {
	return map[source.TopicPartition]source.Start{partitionNumber(0): {Committed: source.NoOffset}}
}

func (g *growingGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, most int64) (source.Page, error) {
	if tp == partitionNumber(1) && offset == 1 {
		close(g.read)
	}
	return g.changingGeneration.Fetch(ctx, tp, offset, most)
}

func (g *growingGeneration) Release([]source.TopicPartition) { g.steps <- "released" }

func (g *growingGeneration) add(n int) {
	g.changes <- source.Change{Added: map[source.TopicPartition]source.Start{partitionNumber(n): {Committed: source.NoOffset}}}
}

// revoke takes partition 1 back, and wants it released although handlers of other partitions run on.
func (g *growingGeneration) revoke(b *bundle) {
	b.Helper()
	g.changes <- source.Change{Revoked: []source.TopicPartition{partitionNumber(1)}}
	select {
	case <-g.steps:
	case <-time.After(wait.Limit()):
		b.Error("a partition that was revoked waits for the handlers of others")
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id = '1/0'"); n != 0 {
		b.Error("its event began")
	}
}

// One worker is busy with a partition that stays. What the other partition has with the pool would wait for it.
func TestHandover_ARevokedPartitionDoesNotWaitForAWorker(t *testing.T) {
	b := setup(t)
	running, hold := make(chan struct{}), make(chan struct{})
	in := b.inbox(func(c *Config) { c.Workers, c.Timeout = 1, 10*time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		close(running)
		<-hold
		return effectOf(ctx, tx, e)
	})
	g := newGrowingGeneration(logOf(event("0/0", "a")), logOf(event("1/0", "b")))
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	<-running
	g.add(1)
	<-g.read
	g.revoke(b)
	close(hold)
	b.awaitOutcome("0/0", Handled)
	stop()
}

// The job waits for a turn of its type, and comes back to the pool when all workers are busy.
func TestHandover_ARevokedPartitionDoesNotWaitForATurn(t *testing.T) {
	b := setup(t)
	running, hold := make(chan string, 3), make(chan struct{})
	in := b.inbox(func(c *Config) { c.Workers, c.Timeout = 2, 10*time.Minute })
	handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		running <- e.ID
		<-hold
		return effectOf(ctx, tx, e)
	}
	in.Handle("order.placed", handler, WithConcurrency(1))
	in.Handle("order.paid", handler)
	paid := event("2/0", "c")
	paid.Type = "order.paid"
	g := newGrowingGeneration(logOf(event("0/0", "a")), logOf(event("1/0", "b")), logOf(paid))
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	<-running
	g.add(1)
	placed := in.settings.turnsOf("order.placed")
	wait.Until(t, "the event waits for its turn, and the loop over stored events for another, whichever came first", func() bool {
		_, waiting := placed.Look()
		return waiting == 2
	})
	g.add(2)
	<-running
	g.revoke(b)
	close(hold)
	b.awaitOutcome("0/0", Handled)
	stop()
}
