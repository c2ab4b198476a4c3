package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// holdFences holds the fences of partitions as a dead owner's transaction does, until the transaction ends.
func (b *bundle) holdFences(from, to int) pgx.Tx {
	b.Helper()
	tx := pgtest.Begin(b, b.db)
	for p := from; p <= to; p++ {
		number := lane.Number("holdfast", "billing", "orders", string(rune('0'+p)))
		pgtest.Exec(b, tx, "select pg_advisory_xact_lock_shared($1, $2)", position.FenceClass, number)
	}
	return tx
}

// The owner of six partitions died and holds their fences. The seventh goes on, with a pool of four.
func TestFencesPool_HeldFencesLeaveConnectionsToOtherPartitions(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	dead := b.holdFences(1, 6)
	in := b.inboxOn(b.db.PoolOf(t, 4), func(c *Config) { c.Timeout = 10 * time.Minute }) // for so long is waited for a lock
	in.Handle("order.placed", effectOf)
	logs := [][]source.Record{logOf(keyed(8, 8)...)}
	for p := 1; p <= 6; p++ {
		logs = append(logs, logOf(event(string(rune('0'+p)), "")))
	}
	parts := newManyPartitions(logs...)
	parts.fakeGeneration.gate = make(chan struct{})
	b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, parts) })
	wait.Until(t, "a partition to wait for its fence", func() bool { return b.fenceWaiters() > 0 })
	close(parts.fakeGeneration.gate)
	b.await("the partition whose fence is free", func(o *observations) bool { return o.settled["orders/0"] == 8 })
	if n := b.fenceWaiters(); n > 1 {
		t.Errorf("%d connections of four wait for fences", n)
	}
	if err := dead.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for p := 1; p <= 6; p++ {
		b.awaitOutcome(string(rune('0'+p)), Handled)
	}
}

// An owner that does not know that it lost the partition begins one transaction after the other: there is never a moment
// without one.
func TestFencesPool_AnOwnerThatGoesOnDoesNotKeepTheNextOneOut(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = 10 * time.Minute }) // for so long it stays in the lock's queue
	one, other := b.holdFences(1, 1), pgx.Tx(nil)
	done := make(chan error, 1)
	go func() {
		_, err := in.consumer.positions.Assign(b.Context(), "orders", 1, "", func(int64) (position.Reading, error) { return position.Reading{}, nil })
		done <- err
	}()
	wait.Until(t, "the next owner to wait", func() bool {
		return b.fenceWaiters() == 1
	})
	// Whoever comes now waits behind it.
	var err error
	if other, err = b.db.Begin(b.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	pgtest.Exec(t, other, "set local lock_timeout = '50ms'")
	if _, err := other.Exec(b.Context(), "select pg_advisory_xact_lock_shared($1, $2)", position.FenceClass, lane.Number("holdfast", "billing", "orders", "1")); err == nil {
		t.Error("the last owner overtook the next one")
	}
	if err := one.Rollback(b.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
