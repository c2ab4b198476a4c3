package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
)

// tracked takes in pages of events with these payload sizes. The seqs of page n are 10n+1, 10n+2, …; its window ends at "n".
func tracked(sizes ...[]int) (t *tracker, events []*pending) {
	t = &tracker{}
	for n, page1 := range sizes {
		p := page{window: cursor{done: "w", upto: fmt.Sprint(n)}, after: cursor{done: fmt.Sprint(n)}, kept: int64(100 + n)}
		for i, size := range page1 {
			e := logEvent{Event: holdfast.Event{Topic: "orders", Key: "k", Payload: make([]byte, size)}, seq: int64(10*n + i + 1), letter: int64(i % 2)}
			p.events = append(p.events, e)
		}
		taken := t.add(p)
		for i := range taken {
			events = append(events, &taken[i])
		}
	}
	return t, events
}

func TestTracker_ACursorMovesToTheFirstEventThatIsNotSettled(t *testing.T) {
	t.Parallel()
	tr, es := tracked([]int{0, 0, 0}, nil, []int{0})
	for i, e := range es {
		if want := (item{queue: queue{"orders", "k"}, replay: []bool{false, true, false, false}[i]}); e.order != int64(i+1) || e.item != want || e.state != queued {
			t.Errorf("event %d: %+v, order %d", i, e.item, e.order)
		}
	}
	advance := func(want cursor, wantMoved bool, events int, freed int64) {
		t.Helper()
		c, moved := tr.advance()
		if c != want || moved != wantMoved || tr.events != events || tr.freed != freed {
			t.Errorf("the cursor is at %+v (moved: %v) with %d events and %d bytes freed, want %+v (%v), %d and %d", c, moved, tr.events, tr.freed, want, wantMoved, events, freed)
		}
	}
	advance(cursor{}, false, 4, 0)
	es[1].state = settled
	advance(cursor{}, false, 4, 0)
	es[0].state = settled
	advance(cursor{"w", "0", 2}, true, 4, 0)
	advance(cursor{}, false, 4, 0)
	es[2].state = leaving
	advance(cursor{}, false, 4, 0)
	es[2].state = settled
	advance(cursor{done: "1"}, true, 1, 201) // and past the page without events
	es[3].state = settled
	advance(cursor{done: "2"}, true, 0, 303)
	advance(cursor{}, false, 0, 303)
	if len(tr.pages) != 0 {
		t.Errorf("%d pages are left", len(tr.pages))
	}
}

func TestTracker_WhatIsToBeParkedEndsBeforeTheFirstEventThatIsQueued(t *testing.T) {
	t.Parallel()
	const one = 256 + 1 // of an event of no payload: its key
	all := func(n int) []pendingState { return slices.Repeat([]pendingState{leaving}, n) }
	for name, c := range map[string]struct {
		states        []pendingState
		next          int
		events, bytes int
		leave         string // their seqs
		after         cursor
	}{
		"all queued":                     {nil, 0, 9, 9999, "", cursor{}},
		"the first two leave":            {[]pendingState{leaving, leaving, queued}, 0, 9, 9999, "1 2", cursor{"w", "0", 2}},
		"settled ones between them":      {[]pendingState{settled, leaving, settled}, 1, 9, 9999, "2", cursor{done: "0"}},
		"all of a page":                  {all(3), 0, 9, 9999, "1 2 3", cursor{done: "0"}},
		"all of both":                    {all(5), 0, 9, 9999, "1 2 3 11 12", cursor{done: "1"}},
		"two at most":                    {all(5), 0, 2, 9999, "1 2", cursor{"w", "0", 2}},
		"three at most: the page":        {all(5), 0, 3, 9999, "1 2 3", cursor{done: "0"}},
		"the bytes of two":               {all(5), 0, 9, 2 * one, "1 2", cursor{"w", "0", 2}},
		"the bytes of two, less one":     {all(5), 0, 9, 2*one - 1, "1", cursor{"w", "0", 1}},
		"one whatever its bytes":         {all(5), 0, 9, 1, "1", cursor{"w", "0", 1}},
		"full, then what is settled":     {[]pendingState{leaving, settled, leaving}, 0, 1, 9999, "1", cursor{"w", "0", 2}},
		"the second page's first queued": {[]pendingState{leaving, leaving, leaving, queued, leaving}, 0, 9, 9999, "1 2 3", cursor{done: "0"}},
	} {
		tr, es := tracked([]int{0, 0, 0}, []int{0, 0})
		for i, s := range c.states {
			es[i].state = s
		}
		tr.pages[0].next = c.next
		leave, after := tr.toPark(c.events, c.bytes)
		var seqs []string
		for _, e := range leave {
			seqs = append(seqs, fmt.Sprint(e.event.seq))
		}
		if got := strings.Join(seqs, " "); got != c.leave || after != c.after {
			t.Errorf("%s: %q leave, and the cursor is at %+v; want %q and %+v", name, got, after, c.leave, c.after)
		}
	}
	var p pending
	if p.leave(topicHeld, errAny); p.state != leaving || p.disposition != topicHeld || !errors.Is(p.err, errAny) {
		t.Errorf("it leaves as %+v", p)
	}
}

func TestTracker_OnlyWhatWasNeverSentMayBeReadAgain(t *testing.T) {
	t.Parallel()
	tr, es := tracked([]int{0, 0}, []int{0, 0})
	want := func(untouched int64, before string) {
		t.Helper()
		var orders []string
		for _, e := range tr.queuedBefore(tr.untouched()) {
			orders = append(orders, fmt.Sprint(e.order))
		}
		if got := tr.untouched(); got != untouched || strings.Join(orders, " ") != before {
			t.Errorf("untouched from %d on, queued before: %v; want %d and %q", got, orders, untouched, before)
		}
	}
	want(1, "")
	es[1].inCall = true
	want(3, "1 2")
	es[0].state = settled
	want(3, "2")
	es[2].state = leaving
	want(4, "2")
	es[1].state, es[1].inCall = settled, false
	want(4, "")
	tr.pages[0].next = 2
	es[2].state = queued
	want(1, "")
}

func TestTracker_ADestinationGivesOutByEventsAndByBytes(t *testing.T) {
	t.Parallel()
	const one = 256 + 1
	for name, c := range map[string]struct{ events, bytes, want int }{
		"all": {9, 9999, 3}, "two at most": {2, 9999, 2}, "none": {0, 9999, 0}, "the bytes of two": {9, 2*one + 10, 2},
		"a byte less": {9, 2*one + 9, 1}, "one whatever its bytes": {9, 1, 1},
	} {
		_, es := tracked([]int{10, 0, 0})
		d := &destination{queue: es}
		taken := d.take(c.events, c.bytes)
		if len(taken) != c.want || len(d.queue) != 3-c.want {
			t.Fatalf("%s: %d are taken and %d left, want %d taken", name, len(taken), len(d.queue), c.want)
		}
		if cap(taken) != len(taken) {
			t.Errorf("%s: what is appended to the call would be written over the queue", name)
		}
		d.putBack(taken)
		if !slices.Equal(d.queue, es) {
			t.Errorf("%s: put back, the queue is in another order", name)
		}
	}
}

func TestTracker_ADestinationCountsWhatItsTopicHasQueued(t *testing.T) {
	t.Parallel()
	_, es := tracked([]int{0, 0, 0})
	es[2].row = &parkedRow{}
	d := &destination{route: &topicRoute{}}
	if !d.idle() {
		t.Error("an empty one is busy")
	}
	at := time.Unix(100, 0)
	for i, e := range es {
		d.enqueue(e, at.Add(time.Duration(i)*time.Second))
		if e.to != d {
			t.Error("the event does not know where it is queued")
		}
	}
	if d.route.queued != 2 || !d.since.Equal(at) || len(d.queue) != 3 || d.idle() {
		t.Errorf("%d of the log are queued since %v, idle: %v", d.route.queued, d.since, d.idle())
	}
	for _, e := range es {
		d.release(e)
	}
	if d.route.queued != 0 {
		t.Errorf("%d are queued after all were released", d.route.queued)
	}
	d.queue, d.call = nil, es
	if d.idle() {
		t.Error("one with a call under way is idle")
	}
	d.call = nil
	if d.putBack(nil); !d.idle() {
		t.Error("one without events is busy")
	}
}
