package relay

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func laneOfNothing() *lane { return newLane(&Relay{bounds: usualBounds}, "", time.Time{}) }

func woken(l *lane) bool {
	select {
	case <-l.answered.some:
		return true
	default:
		return false
	}
}

func TestCalls_LanesTakeTurnsAtTheCallsOfTheirRelay(t *testing.T) {
	s := newCallSlots(2)
	a, b, c := laneOfNothing(), laneOfNothing(), laneOfNothing()
	first, second := s.take(a), s.take(a)
	if first == nil || second == nil {
		t.Fatal("two slots are free, and a lane gets none")
	}
	for _, l := range []*lane{a, b, c, a} {
		if s.take(l) != nil {
			t.Fatal("a third call is started of two")
		}
	}
	first.give()
	first.give() // it counts once
	if !woken(a) || woken(b) {
		t.Fatal("the first lane that waits is not the one that is woken")
	}
	if s.take(b) != nil || s.take(c) != nil {
		t.Fatal("a lane takes the slot of one that has waited longer")
	}
	if s.take(a) == nil {
		t.Fatal("the lane whose turn it is gets no slot")
	}
	if s.take(a) != nil { // it is behind the others now
		t.Fatal("a slot was given back twice")
	}
	second.give()
	if s.take(a) != nil || !woken(b) {
		t.Fatal("a lane that has had its turn comes before those that wait")
	}
	s.leave(b) // it ends, or has nothing to send any more
	if !woken(c) {
		t.Fatal("nobody is woken in place of a lane that left")
	}
	if s.take(c) == nil {
		t.Fatal("a lane that left has kept its slot")
	}
}

// A lane that wants no call any more is not in the others' way, whether its turn has come or not.
func TestCalls_ALaneThatLeavesHasNoTurn(t *testing.T) {
	s := newCallSlots(1)
	a, b, c := laneOfNothing(), laneOfNothing(), laneOfNothing()
	slot := s.take(a)
	if s.take(b) != nil || s.take(c) != nil {
		t.Fatal("a second call is started of one")
	}
	s.leave(b)
	slot.give()
	if woken(b) || !woken(c) {
		t.Fatal("the turn of a lane that left was not passed on")
	}
	s.leave(c) // its turn has come
	s.leave(c) // it counts once
	if slot = s.take(a); slot == nil {
		t.Fatal("the slot of a lane that left is gone")
	}
	if s.take(b) != nil {
		t.Fatal("a lane that left twice gave two slots back")
	}
}

// crowd is a publisher that takes a moment, and counts how many calls are under way. Its topic has many partitions.
type crowd struct {
	now, most atomic.Int64
	takes     time.Duration
	hangs     func(e holdfast.Event) bool
	partOf    func(e holdfast.Event) int
}

const partitionsOfCrowd = 40

func (c *crowd) Partition(e holdfast.Event) (int, int) { return c.partOf(e), partitionsOfCrowd }

func (c *crowd) Publish(ctx context.Context, events []holdfast.Event) []error {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for {
		most := c.most.Load()
		if n <= most || c.most.CompareAndSwap(most, n) {
			break
		}
	}
	takes := c.takes
	if c.hangs != nil && c.hangs(events[0]) {
		takes = time.Minute
	}
	select {
	case <-time.After(takes):
		return make([]error, len(events))
	case <-ctx.Done():
		return slices.Repeat([]error{&publish.Error{Fault: publish.FaultPartition, Err: ctx.Err()}}, len(events))
	}
}

// More partitions than calls wait for their turn: none of them is called slow or held for that, however long it takes.
func TestCalls_APartitionIsNotHeldForWaitingForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 900 * time.Millisecond, partOf: func(e holdfast.Event) int { n := 0; _, _ = fmt.Sscan(e.Key, &n); return n }}
		var held atomic.Int64
		db, l := crowded(t, c, 3, &held)
		written := 2 * partitionsOfCrowd
		for n := range written {
			tx := db.Begin()
			tx.Append(0, simdb.Event{ID: fmt.Sprint("e", n), Topic: "orders", Key: fmt.Sprint(n % partitionsOfCrowd)})
			tx.Commit()
		}
		takeAll(t, l)
		began := time.Now()
		if err := work(t, l, func() bool { return l.tracker.events > 0 && time.Since(began) < 5*time.Minute }); err != nil {
			t.Fatal(err)
		}
		if l.tracker.events > 0 || len(l.holds) > 0 || held.Load() > 0 {
			t.Errorf("%d events are not published after %v; %d partitions were held", l.tracker.events, time.Since(began), held.Load())
		}
		if c.most.Load() != 3 {
			t.Errorf("%d calls at a time, want 3", c.most.Load())
		}
	})
}

// A call that hangs does not keep its turn.
func TestCalls_ASlowCallGivesItsTurnToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 10 * time.Millisecond, partOf: func(e holdfast.Event) int { n := 0; _, _ = fmt.Sscan(e.Key, &n); return n }}
		c.hangs = func(e holdfast.Event) bool { return e.Key == "0" || e.Key == "1" }
		var held atomic.Int64
		db, l := crowded(t, c, 2, &held)
		for n := range 10 {
			tx := db.Begin()
			tx.Append(0, simdb.Event{ID: fmt.Sprint("e", n), Topic: "orders", Key: fmt.Sprint(n)})
			tx.Commit()
		}
		takeAll(t, l)
		began := time.Now()
		if err := work(t, l, func() bool {
			return l.calls == 0 || len(l.waitingDestinations()) > 0 && time.Since(began) < 10*time.Second
		}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > slowAfter+100*time.Millisecond {
			t.Errorf("the other partitions waited %v for two that hang, want about %v", took, slowAfter)
		}
	})
}

// waitingDestinations are those that have something to send and no call.
func (l *lane) waitingDestinations() (waiting []*destination) {
	for _, d := range l.destinations {
		if d.call == nil && len(d.queue) > 0 {
			waiting = append(waiting, d)
		}
	}
	return waiting
}

// crowded is a lane of a relay with so many calls at a time.
func crowded(t *testing.T, c *crowd, calls int, held *atomic.Int64) (*simdb.DB, *lane) {
	t.Helper()
	db, r, l := pacedRelay(t, c, func(string) {})
	r.calls = newCallSlots(calls)
	r.c.ParkAfter = 10 * time.Second
	r.c.Lease, l.leaseUntil = 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
	r.c.Observer.OnHeld = func(Held) { held.Add(1) }
	return db, l
}

// takeAll lets the lane take every event.
func takeAll(t *testing.T, l *lane) {
	t.Helper()
	for {
		p, err := l.reader.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(p.events) > 0 {
			l.accept(p)
		}
		if p.last {
			return
		}
	}
}
