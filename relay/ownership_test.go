package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestOwnership_ASaveKeepsWhatCameWhileItWasUnderWay(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	o := ownership{leaseUntil: now.Add(time.Minute)}
	name := func(id string) []publish.EventName { return []publish.EventName{{ID: id}} }
	reuse := name("a")
	o.reached(cursor{"5:5:", "8:8:", 1}, passedEvents{events: reuse, readAt: now})
	reuse[0] = publish.EventName{ID: "the tracker's next"}
	c, further, past := o.toSave()
	if c != (cursor{"5:5:", "8:8:", 1}) || !further || !slices.Equal(past.events, name("a")) || !past.readAt.Equal(now) {
		t.Fatalf("to save are %v (further: %v) and %v", c, further, past)
	}
	o.reached(cursor{"5:5:", "8:8:", 2}, passedEvents{events: name("b")})
	o.savedUpTo(c, past, now.Add(2*time.Minute))
	if !o.behind() || !o.leaseUntil.Equal(now.Add(2*time.Minute)) || !slices.Equal(past.events, name("a")) {
		t.Errorf("behind: %v, lease until %v, and the save was told %v", o.behind(), o.leaseUntil, past.events)
	}
	if c, further, past = o.toSave(); c.pos != 2 || further || !slices.Equal(past.events, name("b")) || !past.readAt.Equal(now) {
		t.Errorf("then %v (further: %v) and %v are to save", c, further, past)
	}
	o.savedUpTo(c, past, now.Add(2*time.Minute))
	if c, further, past = o.toSave(); o.behind() || further || len(past.events) > 0 {
		t.Errorf("when all is saved: behind %v, %v, further %v, %v", o.behind(), c, further, past)
	}
}

func TestOwnership_WhatATransactionOfTheLaneWroteIsSaved(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var o ownership
	o.reached(cursor{"5:5:", "8:8:", 1}, passedEvents{})
	o.wrote(cursor{"5:5:", "8:8:", 3}, now.Add(time.Minute))
	o.wrotePast(passedEvents{events: []publish.EventName{{ID: "parked"}}})
	c, further, past := o.toSave()
	if o.behind() || further || c.pos != 3 || o.publishedUpTo() != c || len(past.events) != 1 {
		t.Errorf("behind: %v; to save are %v, further: %v, and %v", o.behind(), c, further, past)
	}
	for age, want := range map[time.Duration]bool{10 * time.Second: false, 10*time.Second + 1: true} {
		if got := o.renewedWithin(age, time.Minute, now.Add(10*time.Second)); got != want {
			t.Errorf("a lease of a minute, renewed 10 s ago, within %v: %v", age, got)
		}
	}
}
