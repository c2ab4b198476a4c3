package inbox

import (
	"errors"
	"maps"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func (b *bundle) revoked() map[string]bool {
	return of(b, func(o *observations) map[string]bool { return maps.Clone(o.revoked) })
}

func TestPositionRelease_ReleasingSavesThePositionAndTheEnd(t *testing.T) {
	for _, row := range []struct {
		name     string
		change   func(in *Inbox, p *partition)
		position int64
		orderly  bool
		at       int64 // the checkpoint
		clean    bool  // as OnRevoked hears it
	}{
		{"all has ended", func(*Inbox, *partition) {}, 3, true, 2, true},
		{"a replay that has ended", func(_ *Inbox, p *partition) { p.replayEnd = 3 }, 3, true, 2, true},
		{"a replay that has not", func(_ *Inbox, p *partition) { p.replayEnd = 4 }, 3, false, 2, true},
		{"a handler hangs", func(in *Inbox, _ *partition) { in.receiver.runner.hung.Add(1) }, 3, false, 2, false},
		{"a person has changed the position", func(_ *Inbox, p *partition) { p.fail(errPositionChanged) }, 0, true, -1, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in, gen := b.inbox(), newCommitted()
			p := b.owned(in, gen, 0)
			settleBelow(p, 3)
			row.change(in, p)
			in.consumer.release(gen, []*partition{p})
			b.row(0, row.position, row.orderly, row.at)
			if got, ok := b.revoked()["orders/0"]; !ok || got != row.clean {
				t.Errorf("it is said to be revoked: %v, clean: %v", ok, got)
			}
			if row.position == 3 && (len(gen.got) != 1 || gen.got[0][p.tp] != 3) {
				t.Errorf("the group was given %v, want 3", gen.got)
			}
			if b.fencedOffs() != 0 || of(b, func(o *observations) int { return len(o.errs) }) != 0 {
				t.Error("an end in order is reported as another's or as a failure")
			}
		})
	}
}

func TestPositionRelease_ReleasingLeavesOutWhatWasNeverClaimed(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 1)
	unclaimed := in.consumer.newPartition(nil, gen, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{})
	settleBelow(p, 3)
	in.consumer.release(gen, []*partition{unclaimed, p})
	b.row(1, 3, true, 2)
	if got := b.revoked(); !maps.Equal(got, map[string]bool{"orders/1": true}) {
		t.Errorf("said to be revoked are %v", got)
	}
}

func TestPositionRelease_ReleasingWhatAnotherNodeHasChangesNothing(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	b.raise(in, "", 0)
	settleBelow(p, 3)
	in.consumer.release(gen, []*partition{p})
	b.row(0, 0, false, -1)
	if b.fencedOffs() != 1 || len(gen.got) != 0 {
		t.Errorf("it was fenced off %d times, and the group got %v", b.fencedOffs(), gen.got)
	}
}

func TestPositionRelease_ReleasingAfterACrashOfTheDatabaseLeavesThePosition(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	pgtest.Exec(t, b.db, "delete from holdfast.incarnation; insert into holdfast.incarnation default values")
	in.consumer.release(gen, []*partition{p})
	b.row(0, 0, true, -1)
	if !errors.Is(p.failed, errStaleGeneration) || len(gen.got) != 0 {
		t.Errorf("it says %v, and the group got %v", p.failed, gen.got)
	}
}

func TestPositionRelease_ReleasingThatFailsIsReportedAndHoldsNothingUp(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p, other := b.owned(in, gen, 0), b.owned(in, gen, 1)
	settleBelow(p, 3)
	settleBelow(other, 2)
	pgtest.Exec(t, b.db, "alter table holdfast.consumer_position add constraint bound check (position < 3) not valid")
	in.consumer.release(gen, []*partition{p, other})
	b.reported(nil, "release orders/0")
	b.row(0, 0, false, -1)
	b.row(1, 2, true, 1)
	if len(gen.got) != 1 || gen.got[0][other.tp] != 2 || gen.got[0][p.tp] > 0 {
		t.Errorf("the group was given %v, want 2 of partition 1, and nothing that was not saved", gen.got)
	}
	if len(b.revoked()) != 2 {
		t.Errorf("said to be revoked are %v", b.revoked())
	}
}

func TestPositionRelease_ReleasingTakesCountedStartsBack(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	d := in.registry.newDelivery(event("1", "k"))
	d.start = 1
	if err := in.receiver.ledger.starts.countAll(t.Context(), []*delivery{d}); err != nil {
		t.Fatal(err)
	}
	p.counted[0] = d
	in.consumer.release(gen, []*partition{p})
	if n := b.count("select coalesce(sum(starts), 0)::bigint from holdfast.start"); n != 0 {
		t.Errorf("%d starts are left", n)
	}
}
