package inbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// These tests save, commit and release partitions that nobody reads.

// committed is a generation that keeps what was committed, and may refuse it.
type committed struct {
	*fakeGeneration
	mu      sync.Mutex
	refuses error
	got     []map[source.TopicPartition]int64
}

func (c *committed) Commit(_ context.Context, offsets map[source.TopicPartition]int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, maps.Clone(offsets))
	return c.refuses
}

func newCommitted() *committed { return &committed{fakeGeneration: newFakeGeneration(nil)} }

// owned is a partition that this node was given at offset 0, and that nobody reads.
func (b *bundle) owned(in *Inbox, gen source.Generation, number int) *partition {
	b.Helper()
	p := in.consumer.newPartition(nil, gen, source.TopicPartition{Topic: "orders", Partition: number}, source.Start{Committed: source.NoOffset})
	a, err := in.consumer.positions.Assign(b.Context(), "orders", number, "", readAt(0))
	if err != nil {
		b.Fatal(err)
	}
	p.fence, p.track, p.known = a.Fence, readahead.NewTracker(0), source.NoOffset
	p.reading, p.halt = context.WithCancel(b.Context())
	b.Cleanup(p.halt)
	return p
}

// settleBelow settles the events up to an offset. Their identities are 1000 more than their offsets.
func settleBelow(p *partition, below int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for offset := p.track.Next; offset < below; offset++ {
		p.track.Begin(offset, 1, readahead.Reservation{}, 1000+offset)
		p.track.Settle(offset)
	}
}

// row wants a partition's row to be such.
func (b *bundle) row(number int, position int64, clean bool, checkpoint int64) {
	b.Helper()
	if n := b.count(`select count(*) from holdfast.consumer_position where partition = $1 and position = $2 and clean = $3
		and coalesce(checkpoint_offset, -1) = $4 and coalesce(checkpoint_identity, 999) = 1000 + $4`, number, position, clean, checkpoint); n != 1 {
		var got string
		_ = b.db.QueryRow(b.Context(), "select string_agg(concat_ws(' ', partition, position, clean, checkpoint_offset, checkpoint_identity), '; ') from holdfast.consumer_position").Scan(&got)
		b.Errorf("the row of partition %d is not at %d, clean %v, checkpoint %d; rows: %s", number, position, clean, checkpoint, got)
	}
}

// of is what an observation says, under its lock.
func of[T any](b *bundle, f func(o *observations) T) T {
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	return f(b.observed)
}

func (b *bundle) fencedOffs() int { return of(b, func(o *observations) int { return o.fenced }) }

// reported says whether an error that was reported is, or says, such.
func (b *bundle) reported(is error, says string) {
	b.Helper()
	errs := of(b, func(o *observations) []error { return slices.Clone(o.errs) })
	if len(errs) == 0 {
		b.Error("no error was reported")
		return
	}
	last := errs[len(errs)-1]
	if is != nil && !errors.Is(last, is) {
		b.Errorf("%v was reported, want %v", last, is)
	}
	b.wantError(last, says)
}

func TestPositionSave_SavingMovesTheRowAndThenTheGroup(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	moved, quiet := b.owned(in, gen, 0), b.owned(in, gen, 1)
	quiet.known = 0
	unclaimed := in.consumer.newPartition(nil, gen, source.TopicPartition{Topic: "orders", Partition: 2}, source.Start{})
	parts := []*partition{quiet, unclaimed, moved}
	settleBelow(moved, 3)
	for range 2 { // The second one has nothing to do.
		if err := in.consumer.save(t.Context(), gen, parts); err != nil {
			t.Fatal(err)
		}
	}
	b.row(0, 3, false, 2)
	b.row(1, 0, false, -1)
	if len(gen.got) != 1 || !maps.Equal(gen.got[0], map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 3}) {
		t.Errorf("the group was given %v, want 3 of partition 0 once", gen.got)
	}
	if got := of(b, func(o *observations) map[string]int64 { return maps.Clone(o.settled) }); !maps.Equal(got, map[string]int64{"orders/0": 3}) {
		t.Errorf("settled are said to be %v", got)
	}
	settleBelow(moved, 5)
	if err := in.consumer.save(t.Context(), gen, parts); err != nil {
		t.Fatal(err)
	}
	b.row(0, 5, false, 4)
	if len(gen.got) != 2 || gen.got[1][moved.tp] != 5 {
		t.Errorf("the group was given %v, want 5 at last", gen.got)
	}
}

func TestPositionSave_SavingGivesUpWhatAnotherNodeHas(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	lost, kept := b.owned(in, gen, 0), b.owned(in, gen, 1)
	b.raise(in, "", 0)
	settleBelow(lost, 3)
	settleBelow(kept, 4)
	for range 2 {
		if err := in.consumer.save(t.Context(), gen, []*partition{lost, kept}); err != nil {
			t.Fatal(err)
		}
	}
	b.row(0, 0, false, -1)
	b.row(1, 4, false, 3)
	if b.fencedOffs() != 1 || !errors.Is(lost.failed, failure.ErrFenced) || errors.Is(lost.failed, errStaleGeneration) || kept.failed != nil {
		t.Errorf("fenced off %d times; the lost one says %v, the other %v", b.fencedOffs(), lost.failed, kept.failed)
	}
	if len(gen.got) != 1 || !maps.Equal(gen.got[0], map[source.TopicPartition]int64{kept.tp: 4}) {
		t.Errorf("the group was given %v, want partition 1 alone", gen.got)
	}
	if got := of(b, func(o *observations) map[string]int64 { return maps.Clone(o.settled) }); got["orders/0"] != 0 {
		t.Error("what another node has is said to be settled")
	}
}

func TestPositionSave_SavingAfterACrashOfTheDatabaseSaysThatAndSavesNothing(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	pgtest.Exec(t, b.db, "delete from holdfast.incarnation; insert into holdfast.incarnation default values")
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil {
		t.Fatal(err)
	}
	b.row(0, 0, false, -1)
	if !errors.Is(p.failed, errStaleGeneration) || b.fencedOffs() != 0 || len(gen.got) != 0 {
		t.Errorf("it says %v, was fenced off %d times, and the group got %v", p.failed, b.fencedOffs(), gen.got)
	}
	b.reported(errStaleGeneration, "orders/0")
}

func TestPositionSave_SavingThatFailsGivesNothingUp(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	for _, row := range []struct{ breaks, mends string }{
		{"alter table holdfast.consumer_position rename to gone", "alter table holdfast.gone rename to consumer_position"},
		{"alter table holdfast.consumer_position add constraint bound check (position < 2) not valid", "alter table holdfast.consumer_position drop constraint bound"},
	} {
		pgtest.Exec(t, b.db, row.breaks)
		b.wantError(in.consumer.save(t.Context(), gen, []*partition{p}), "save positions")
		if p.failed != nil || len(gen.got) != 0 || of(b, func(o *observations) int { return len(o.settled) }) != 0 {
			t.Errorf("after %q the partition says %v, and the group got %v", row.breaks, p.failed, gen.got)
		}
		pgtest.Exec(t, b.db, row.mends)
	}
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil {
		t.Fatal(err)
	}
	b.row(0, 3, false, 2)
}

func TestPositionSave_CommittingThatTheGroupRefusesIsTriedAgain(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	gen.refuses = errors.New("rebalancing")
	for i := range 3 {
		if i == 1 {
			b.reported(gen.refuses, "committing offsets")
			gen.refuses = nil
		}
		if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil {
			t.Fatal(err)
		}
	}
	if len(gen.got) != 2 || gen.got[1][p.tp] != 3 {
		t.Errorf("the group was given %v, want the offset twice", gen.got)
	}
}

func TestPositionSave_SavingGoesOnAfterAFailure(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	pgtest.Exec(t, b.db, "alter table holdfast.consumer_position rename to gone")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { in.consumer.saveLoop(ctx, gen, holding(p)); close(done) }()
	b.await("the failure", func(o *observations) bool { return len(o.errs) > 0 })
	b.reported(nil, "save positions")
	pgtest.Exec(t, b.db, "alter table holdfast.gone rename to consumer_position")
	b.await("the position", func(o *observations) bool { return o.settled["orders/0"] == 3 })
	// It looks while nothing moves, too.
	pgtest.Exec(t, b.db, "delete from holdfast.incarnation; insert into holdfast.incarnation default values")
	b.await("the crash", func(o *observations) bool { return errors.Is(o.errs[len(o.errs)-1], errStaleGeneration) })
	cancel()
	<-done
}

func TestPositionSave_LookingGivesUpWhatOtherIncarnationsGave(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p, old := b.owned(in, gen, 0), b.owned(in, gen, 1)
	unclaimed := in.consumer.newPartition(nil, gen, source.TopicPartition{Topic: "orders", Partition: 2}, source.Start{})
	old.fence.Token = "another"
	if err := in.consumer.look(t.Context(), []*partition{unclaimed, p, old}); err != nil {
		t.Fatal(err)
	}
	if p.failed != nil || !errors.Is(old.failed, errStaleGeneration) {
		t.Errorf("it says %v of the new one, %v of the old", p.failed, old.failed)
	}
	pgtest.Exec(t, b.db, "drop view holdfast.current_incarnation")
	b.wantError(in.consumer.look(t.Context(), []*partition{p}), "read the incarnation")
	if p.failed != nil {
		t.Errorf("a look that failed gives the partition up: %v", p.failed)
	}
	wait.Until(t, "the connection is back", func() bool { return b.db.Stat().AcquiredConns() == 0 })
}
