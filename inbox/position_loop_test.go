package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// seen is how many statements were counted so far.
func (b *beginnings) seen() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// What does not move is not saved, and asks the database for its incarnation once a second.
func TestPositionLoop_SavingAsksNothingWhileNothingMoves(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	pool, saves := b.counted("-- inbox.save\n")
	looking, looks := b.counted("-- inbox.incarnation\n")
	gen := newCommitted()
	in := b.inboxOn(pool)
	p := b.owned(in, gen, 0)
	settleBelow(p, 2)
	for range 3 {
		if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil {
			t.Fatal(err)
		}
	}
	if n := saves.seen(); n != 1 {
		t.Errorf("%d saves of what moved once", n)
	}

	in = b.inboxOn(looking)
	p = b.owned(in, gen, 1)
	settleBelow(p, 2)
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil || looks.seen() != 0 {
		t.Errorf("%d looks beside a save that says all, %v", looks.seen(), err)
	}
	begun := time.Now()
	stop := b.run(func(ctx context.Context) error { in.consumer.saveLoop(ctx, gen, holding(p)); return nil })
	wait.Until(t, "a few looks", func() bool { return looks.seen() >= 3 })
	stop()
	if n, most := looks.seen(), int(time.Since(begun)/lookEvery)+1; n > most {
		t.Errorf("%d looks in %v, want at most %d", n, time.Since(begun), most)
	}
	if errs := of(b, func(o *observations) int { return len(o.errs) }); errs != 0 {
		t.Errorf("%d errors were reported, of a loop that was told to stop", errs)
	}
}

// A save that takes long is followed by a rest in proportion: else a slow database had one on it all the time.
func TestPositionLoop_SavingRestsAfterASlowSave(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	pool, saves := b.counted("-- inbox.save\n")
	in := b.inboxOn(pool)
	in.consumer.positions.SQL.Save = strings.Replace(in.consumer.positions.SQL.Save, "-- inbox.save\n", "-- inbox.save\nwith slow as materialized (select pg_sleep(0.15)) ", 1)
	in.consumer.positions.SQL.Save = strings.Replace(in.consumer.positions.SQL.Save, "from unnest(", "from slow, unnest(", 1)
	gen := newCommitted()
	p := b.owned(in, gen, 0)
	begun := time.Now()
	stop := b.run(func(ctx context.Context) error { in.consumer.saveLoop(ctx, gen, holding(p)); return nil })
	wait.Until(t, "two saves", func() bool { settleBelow(p, p.track.Next+1); return saves.seen() >= 2 })
	took := time.Since(begun)
	stop()
	if least := saveEvery + 10*150*time.Millisecond; took < least {
		t.Errorf("the second slow save began after %v, want %v at least", took, least)
	}
}

// What another node has is neither told to the Observer as settled nor counted as saved.
func TestPositionLoop_SavingSaysNothingOfWhatIsLost(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	b.raise(b.inbox(), "", 0)
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil {
		t.Fatal(err)
	}
	if told := of(b, func(o *observations) int64 { return o.settled["orders/0"] }); told != 0 || p.saved != 0 || !p.fenced {
		t.Errorf("settled up to %d was told, %d counts as saved, lost is %v", told, p.saved, p.fenced)
	}
}

// Why a partition is missing in the answer is looked up. Until that is known it is given up for no reason.
func TestPositionLoop_SavingWaitsToKnowWhyAPartitionIsMissing(t *testing.T) {
	b := setup(t)
	in, gen := b.inbox(), newCommitted()
	p := b.owned(in, gen, 0)
	settleBelow(p, 3)
	b.raise(b.inbox(), "", 0) // another node has it
	statement := in.consumer.positions.SQL.Incarnation
	in.consumer.positions.SQL.Incarnation = "select 1/0"
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err == nil || p.fenced {
		t.Errorf("the look fails: %v, given up %v", err, p.fenced)
	}
	in.consumer.positions.SQL.Incarnation = statement
	if err := in.consumer.save(t.Context(), gen, []*partition{p}); err != nil || !errors.Is(p.failed, failure.ErrFenced) {
		t.Errorf("%v, given up for %v", err, p.failed)
	}
}

// An answer that breaks off decides nothing.
func TestPositionLoop_SavingThatBreaksOffGivesNothingUp(t *testing.T) {
	b := setup(t)
	args := " from (select $1::text, $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[]) x, generate_series(1, 2) n"
	for name, save := range map[string]string{"a row that cannot be read": "select 'orders', 'x'" + args, "an error after the first row": "select 'orders', 1/(2 - n)" + args} {
		in, gen := b.inbox(), newCommitted()
		p := b.owned(in, gen, 0)
		settleBelow(p, 3)
		in.consumer.positions.SQL.Save = save
		if err := in.consumer.save(t.Context(), gen, []*partition{p}); err == nil || !strings.Contains(err.Error(), "save positions") {
			t.Errorf("%s: %v", name, err)
		}
		if p.fenced || p.failed != nil || p.saved != 0 || len(gen.got) != 0 {
			t.Errorf("%s: lost %v (%v), saved up to %d, committed %v", name, p.fenced, p.failed, p.saved, gen.got)
		}
	}
}

// holding is a generation's set of one partition.
func holding(p *partition) *owned {
	return &owned{of: map[source.TopicPartition]*ownedPartition{p.tp: {partition: p}}}
}
