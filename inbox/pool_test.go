package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A key with many events gives its worker back now and then. What of it comes next was read before most that is ready by then,
// and must not wait for all of that: it would fall behind as far as there are other keys.
func TestPool_ABusyKeyDoesNotWaitForAllOthersAtEachOfItsEvents(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := loop.Sleep(ctx, maxPipeline+time.Millisecond); err != nil { // So that the worker is given back behind each.
			return err
		}
		return effectOf(ctx, tx, e)
	})
	const busy, others = 6, 24
	var events []holdfast.Event
	for i := range busy {
		events = append(events, event(fmt.Sprintf("busy %d", i), "busy"))
	}
	for i := range others {
		events = append(events, event(fmt.Sprintf("other %02d", i), fmt.Sprintf("key %d", i)))
	}
	b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(int64(len(events)))
	if n := b.count("select max(n) - min(n) from effect where key = 'busy'"); n > 2*busy {
		t.Errorf("the last of a busy key's %d events came %d events after its first: it waited for %d of other keys", busy, n, n-busy+1)
	}
}

// What comes behind a stored event is stored in groups, one after the other: another key waits for a few of them, and not
// for all that its partition has of the key that fails.
func TestPool_AKeyThatIsPutAsideGivesItsWorkerToOthersNowAndThen(t *testing.T) {
	skip.InShort(t, "it takes 18 s beside the others")
	t.Parallel()
	b := slowToCommit(t)
	in := b.inbox(func(c *Config) {
		c.Workers = 1
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
	})
	const n, at = 4 * readahead.MaxAhead, readahead.MaxAhead + 100 // so that it is read when the first of them are stored
	var stored atomic.Int64                                        // when it was handled
	stored.Store(-1)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "fails" {
			return errors.New("always")
		}
		var count int64
		err := tx.QueryRow(ctx, "select count(*) from holdfast.stored").Scan(&count)
		stored.Store(count)
		return err
	})
	var events []holdfast.Event
	for i := range n {
		if i == at {
			events = append(events, event("other", "other"))
		}
		events = append(events, event(fmt.Sprintf("fails %d", i), "fails"))
	}
	g := &pagedAt{fakeGeneration: newFakeGeneration(logOf(events...)), at: at, before: func() int64 { return b.count("select count(*) from holdfast.stored") }}
	b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	b.awaitSettled(n + 1)
	got, then := stored.Load(), g.found.Load()
	if t.Logf("%d were stored when it was read, and %d when it was handled", then, got); got < 0 || got-then > readahead.MaxAhead/2 {
		t.Errorf("the event of another key was read when %d of %d were stored, and handled when there were %d", then, n, got)
	}
}

// pagedAt is a group with one generation, whose log has a page that begins at an offset. It keeps what before says when that page is read.
type pagedAt struct {
	*fakeGeneration
	given  bool
	at     int64
	before func() int64
	found  atomic.Int64
}

func (p *pagedAt) Next(ctx context.Context) (source.Generation, error) {
	return giveOnce(ctx, &p.given, p)
}
func (p *pagedAt) Close() {}

func (p *pagedAt) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if offset < p.at {
		return source.Page{Records: p.log[offset:p.at], Next: p.at}, nil
	}
	if offset == p.at {
		p.found.Store(p.before())
	}
	return p.fakeGeneration.Fetch(ctx, tp, offset, maxBytes)
}

// A server that takes 25 ms for a statement ends a worker's turn after each event. What follows a stored one is stored in groups
// there too, while other keys wait for the same worker.
func TestPool_OnASlowServerFollowersAreStoredTogetherToo(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(0.025); return null; end'")
	pgtest.Exec(t, b.db, "create trigger slow before insert on holdfast.inbox for each statement execute function slow()")
	in := b.inbox(func(c *Config) {
		c.Workers = 1
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
		c.MaxStored, c.MaxStoredKey = -1, -1
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "fails" {
			return errors.New("always")
		}
		return effectOf(ctx, tx, e)
	})
	const n = 200
	var events []holdfast.Event
	for i := range n {
		events = append(events, event(fmt.Sprintf("fails %d", i), "fails"), event(fmt.Sprintf("other %d", i), fmt.Sprintf("key %d", i)))
	}
	b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(2 * n)
	if by := b.count(`select count(distinct xmin::text) from holdfast.inbox where result = 'stored'`); by > n/10 {
		t.Errorf("%d events were stored in %d transactions", n, by)
	}
}

// goesOn is an owner that does not stop.
type goesOn struct{ jobOwner }

func (goesOn) stopped() bool { return false }

// A worker's turn with a slow key is long. The keys that are fast wait for turns, and not for all that was read before them.
func TestPool_SlowKeysDoNotKeepAllThatWasReadLaterWaiting(t *testing.T) {
	const slow, each, workers = 8, 100, 8
	c := newWorkerPool(bareReceiver())
	left := map[*job]int{}
	for range slow { // The first of each key is ready; the others behind it were read at the same time, about.
		j := &job{owner: goesOn{}, read: c.read.Add(1), ds: []*delivery{{}}}
		left[j] = each - 1
		c.add(j)
	}
	fast := &job{owner: goesOn{}, read: slow*each + 1, ds: []*delivery{{}}}
	c.add(fast)
	for turn := 1; ; turn++ {
		var taken []*job
		for range workers {
			if j := c.take(false); j != nil {
				taken = append(taken, j)
			}
		}
		if slices.Contains(taken, fast) {
			if turn > 2 {
				t.Errorf("an event that was read later came in turn %d of %d", turn, each)
			}
			return
		}
		for _, j := range taken {
			if n := left[j]; n > 0 {
				next := &job{owner: goesOn{}, read: j.read, ds: []*delivery{{}}}
				left[next] = n - 1
				c.add(next)
			}
		}
	}
}

// The reader may add to a batch, and sort it, while a worker looks whether its type has a turn.
func TestPool_AWorkerReadsNoEventsOfABatchThatCollects(t *testing.T) {
	c := newWorkerPool(bareReceiver())
	c.receiver.kinds = map[string]kind{}
	c.receiver.note(registration{limit: 1}, "order.placed")
	batch := &job{owner: goesOn{}, kind: jobBatch, first: "order.placed", stop: t.Context().Done()}
	c.add(batch)
	if j := c.take(false); j != batch || j.turn != c.receiver.turnsOf("order.placed") {
		t.Errorf("took %v, want the batch with a turn of its type", j)
	}
}

func TestPool_EachJobIsTakenOnceAndEveryOtherIsTheOneReadFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := newWorkerPool(bareReceiver())
	var waiting []*job // in the order in which they became ready
	byRead := false
	for range 20_000 {
		if rng.IntN(2) == 0 || rng.IntN(50) == 0 {
			for range 1 + rng.IntN(4) {
				j := &job{owner: goesOn{}, read: rng.Int64N(1000), ds: []*delivery{{}}}
				c.add(j)
				waiting = append(waiting, j)
			}
		}
		for range rng.IntN(6) {
			j := c.take(false)
			at := slices.Index(waiting, j)
			switch {
			case j == nil && len(waiting) == 0:
				continue
			case at < 0:
				t.Fatalf("took %v, and %d are waiting", j, len(waiting))
			}
			if byRead = !byRead; byRead && slices.ContainsFunc(waiting, func(w *job) bool { return w.read < j.read }) {
				t.Fatal("took a job, and another was read before it")
			} else if !byRead && at > 0 {
				t.Fatal("took a job, and another was ready before it")
			}
			waiting = slices.Delete(waiting, at, at+1)
		}
		if c.waiting != len(waiting) {
			t.Fatalf("%d wait, by its word %d", len(waiting), c.waiting)
		}
	}
	if n := len(c.first) + len(c.queue); n > 10*len(waiting)+2000 {
		t.Errorf("%d are kept for %d that wait", n, len(waiting))
	}
}
