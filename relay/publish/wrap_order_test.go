package publish

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// ofAKey is n events of one key.
func ofAKey(n int) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = holdfast.Event{ID: fmt.Sprint(i), Topic: "orders", Key: "k"}
	}
	return events
}

func TestWrapOrder_TheOrderOfALongKeyIsCheckedInOneWalk(t *testing.T) {
	const n = 2000
	events := ofAKey(n)
	for name, parts := range map[string]int{"in one call": 1, "in two calls": 2, "one by one": n} {
		o := newWrappedOrder(events)
		for part := range parts {
			g := o.begin(n / parts)
			of := events[part*n/parts : (part+1)*n/parts]
			for _, e := range of {
				if err := g.add(e); err != nil {
					t.Fatalf("%s: event %s: %v", name, e.ID, err)
				}
			}
			for _, e := range of {
				o.ack(e)
			}
		}
		if o.steps != 2*n { // for each event one when it is sent and one when it is acknowledged
			t.Errorf("%s: %d steps for %d events, want %d", name, o.steps, n, 2*n)
		}
	}
}

func TestWrapOrder_TheOrderOfKeysIsThatOfALookAtAllBefore(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	for range 2000 {
		events := make([]holdfast.Event, 1+r.IntN(7))
		for i := range events {
			events[i] = holdfast.Event{ID: fmt.Sprint(r.IntN(6)), Topic: "orders", Key: []string{"", "k", "l"}[r.IntN(3)]}
		}
		o, acked := newWrappedOrder(events), map[wrappedID]bool{}
		for range 4 {
			g, sending := o.begin(0), map[wrappedID]bool{}
			for range 1 + r.IntN(6) {
				e := events[r.IntN(len(events))]
				place := 0
				for identify(events[place]) != identify(e) {
					place++
				}
				may := true
				for _, before := range events[:place] {
					may = may && (e.Key == "" || before.Key != e.Key || acked[identify(before)] || sending[identify(before)])
				}
				if err := g.add(e); (err == nil) != may {
					t.Fatalf("of %v, with %v acknowledged and %v in sending, %s of %q: %v, may %v", events, acked, sending, e.ID, e.Key, err, may)
				}
				if may {
					sending[identify(e)] = true
				}
			}
			for _, e := range events {
				if sending[identify(e)] && r.IntN(3) > 0 && !acked[identify(e)] {
					acked[identify(e)] = true
					o.ack(e)
				}
			}
		}
	}
}

// Most middlewares make one call with all events: that is noted by place, and by event once there is another call.
func TestWrapOrder_ACallWithAllIsAsOneThatIsCheckedByEvent(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 0))
	for range 2000 {
		events := make([]holdfast.Event, 1+r.IntN(7))
		for i := range events {
			events[i] = holdfast.Event{ID: fmt.Sprint(i), Topic: "orders", Key: []string{"", "k", "l"}[r.IntN(3)]}
		}
		answers, early := make([]error, len(events)), r.IntN(2) > 0
		for i := range answers {
			if r.IntN(3) == 0 {
				answers[i] = errTooEarly
			}
		}
		byPlace, byEvent := newWrappedOrder(events), newWrappedOrder(events)
		if !byPlace.all(events) || byPlace.all(events) {
			t.Fatal("the first call has all, and no other is the first")
		}
		g := byEvent.begin(len(events))
		for _, e := range events {
			if err := g.add(e); err != nil {
				t.Fatal(err)
			}
		}
		answer := func() {
			byPlace.ackAll(answers)
			for i, e := range events {
				if answers[i] == nil {
					byEvent.ack(e)
				}
			}
		}
		if !early { // Before the other call begins.
			answer()
		}
		one, other := byPlace.begin(0), byEvent.begin(0)
		for range 1 + r.IntN(6) {
			e := events[r.IntN(len(events))]
			if a, b := one.add(e), other.add(e); a != b {
				t.Fatalf("of %v, answered %v, early %v: %s may be sent: %v and %v", events, answers, early, e.ID, a, b)
			}
		}
		if early {
			answer()
		}
		for i := range events {
			if byPlace.has(i) != byEvent.has(i) || byPlace.has(i) != (answers[i] == nil) {
				t.Fatalf("of %v, answered %v, early %v: %d is acknowledged: %v and %v", events, answers, early, i, byPlace.has(i), byEvent.has(i))
			}
		}
	}
	events := ofAKey(3)
	for name, other := range map[string][]holdfast.Event{"one fewer": events[:2], "another order": {events[1], events[0], events[2]}, "another key": {events[0], events[1], {ID: "2", Topic: "orders", Key: "l"}}} {
		if newWrappedOrder(events).all(other) {
			t.Errorf("%s is all", name)
		}
	}
}

// BenchmarkWrap is a call through middleware with 2,000 events of one key.
func BenchmarkWrap(b *testing.B) {
	events := ofAKey(2000)
	p := Wrap(acknowledging{}, func(next Func) Func { return next })
	for b.Loop() {
		p.Publish(context.Background(), events)
	}
}

type acknowledging struct{}

func (acknowledging) Publish(_ context.Context, events []holdfast.Event) []error {
	return make([]error, len(events))
}
