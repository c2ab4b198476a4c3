package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// heldTwice is a lane with two parked events: "first" waits for its topic, and "second" for its partition.
func heldTwice(t *testing.T, p Publisher) *lane {
	t.Helper()
	return parkedTwice(t, p, func(l *lane) { l.holdPartition(l.destinationAt(spot{"orders", 1}), time.Hour, time.Now()) })
}

// parkedTwice is a lane with two parked events of two partitions of a topic that is held, with what else is held before it.
func parkedTwice(t *testing.T, p Publisher, before func(l *lane)) *lane {
	t.Helper()
	db, r, l := pacedRelay(t, p, func(string) {})
	r.c.Lease, l.leaseUntil = 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
	r.calls = newCallSlots(2)
	for i, id := range []string{"first", "second"} {
		tx := db.Begin()
		tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: string(rune('0' + i))})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		page, err := l.reader.next(t.Context())
		if err != nil || len(page.events) != 1 {
			t.Fatalf("%d events, %v", len(page.events), err)
		}
		l.accept(page)
	}
	before(l)
	held := len(l.holds) + 1
	l.holdTopic("orders", errors.New("unknown topic"), time.Now())
	if err := work(t, l, func() bool { return len(db.Parked()) < 2 }); err != nil {
		t.Fatal(err)
	}
	if len(l.holds) != held {
		t.Fatalf("held: %v", l.heldSpots())
	}
	time.Sleep(time.Millisecond) // sleep: by the clock of synctest
	for _, h := range l.holds {
		h.nextAt = time.Now() // it is tried at once
	}
	return l
}

// times says how often each event was sent.
func times(sent []string) map[string]int {
	n := map[string]int{}
	for _, id := range sent {
		n[id]++
	}
	return n
}

// While an event is tried for its topic another one is tried for its partition, and its answer says nothing of the topic. The first
// is still on its way then: if it were read again, it would be published again after it had been acknowledged.
// (TestLoops_TheLoopsOfARelay…, seed 11989637298215886857.)
func TestProbe_AnEventThatIsTriedForItsTopicIsNotReadAgainMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &eachAnswered{takes: map[string]time.Duration{"first": 5 * time.Second}, fails: map[string]error{
			"second": &publish.Error{Topic: "orders", Partition: 1, Fault: publish.FaultPartition, Err: errors.New("no leader")}}}
		l := heldTwice(t, p)
		end := time.Now().Add(10 * time.Minute)
		if err := work(t, l, func() bool { return time.Now().Before(end) }); err != nil {
			t.Fatal(err)
		}
		if n := times(p.sent()); n["first"] != 1 || n["second"] < 2 {
			t.Errorf("sent: %v; the first has to be sent once, and the second until it is taken", n)
		}
	})
}

// A topic has got other partitions since an event was parked, so it is on its way to another one than the one that it waits for.
func TestProbe_AnEventThatIsInMemoryIsNotTriedForItsPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := heldTwice(t, &eachAnswered{})
		at := spot{"orders", 1}
		rows, err := l.readProbe(t.Context(), at, 0)
		if err != nil || len(rows) != 1 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		elsewhere := l.pendingOf(&rows[0])
		l.leases.begin(elsewhere)
		if err := l.probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h, d := l.holds[at], l.destinationAt(at); h == nil || h.probing || len(d.queue) > 0 || !h.nextAt.After(time.Now()) {
			t.Errorf("the hold is %+v, and its partition has %d events to send", h, len(d.queue))
		}
		l.tried(elsewhere)
		time.Sleep(time.Minute) // sleep: by the clock of synctest
		if err := l.probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h, d := l.holds[at], l.destinationAt(at); !h.probing || len(d.queue) != 1 {
			t.Errorf("it is in memory no more, and is not tried: the hold is %+v", h)
		}
	})
}

// eachAnswered is a publisher whose answers are given for each event.
type eachAnswered struct {
	answering
	takes map[string]time.Duration
	fails map[string]error
	ids   []string
}

func (ea *eachAnswered) Publish(_ context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		ea.mu.Lock()
		ea.ids, errs[i] = append(ea.ids, e.ID), ea.fails[e.ID]
		wait := ea.takes[e.ID]
		ea.mu.Unlock()
		time.Sleep(wait) // sleep: by the clock of synctest
	}
	return errs
}

func (ea *eachAnswered) sent() []string {
	ea.mu.Lock()
	defer ea.mu.Unlock()
	return slices.Clone(ea.ids)
}
