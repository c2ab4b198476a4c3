package settled

import (
	"fmt"
	"testing"
	"time"
)

func TestSettled_WhatIsToldDuringALookIsLookedAtAfterIt(t *testing.T) {
	now := time.Now()
	for _, row := range []struct {
		name string
		told time.Duration // before the look's end; 0: never
		want time.Duration
	}{{"nothing", 0, latest}, {"before the look", 20, latest}, {"during the look", 5, 0}} {
		g := &group{began: now.Add(-time.Hour), end: make(chan struct{})}
		if row.told > 0 {
			g.told = now.Add(-row.told)
		}
		e := Event{"billing", "shop", "a"}
		r := newRoom(place{schema: "holdfast"})
		r.of[e], r.scan = g, now.Add(time.Hour)
		r.took([]Event{e}, []finding{{}}, nil, now.Add(-10), now)
		events, rest, _ := r.due(now)
		if row.want == 0 && len(events) != 1 || row.want > 0 && (len(events) > 0 || rest != row.want) {
			t.Errorf("%s: %d are looked at, the others in %s: want that in %s", row.name, len(events), rest, row.want)
		}
	}
}

func TestSettled_LooksBecomeRareAsAWaitBecomesLong(t *testing.T) {
	for _, row := range []struct {
		waited time.Duration
		failed bool
		want   time.Duration
	}{
		{0, false, soonest}, {40 * time.Millisecond, false, soonest}, {80 * time.Millisecond, false, 10 * time.Millisecond},
		{time.Second, false, latest}, {time.Hour, false, latest}, {0, true, latest},
	} {
		if got := pause(row.waited, row.failed); got != row.want {
			t.Errorf("after %s (failed: %t) the next look is in %s, want %s", row.waited, row.failed, got, row.want)
		}
	}
	looks := 0
	for at := time.Duration(0); at < time.Second; looks++ {
		at += pause(at, false)
	}
	if looks > 40 {
		t.Errorf("a wait of a second costs %d looks", looks)
	}
}

// A database that answers slowly is not asked more than it can bear.
func TestSettled_LooksTakeATenthOfTheTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: soonest, 300 * time.Microsecond: soonest, 2 * time.Millisecond: 18 * time.Millisecond, 5 * time.Second: time.Second,
	} {
		if got := between(took); got != want {
			t.Errorf("after a look of %s it rests for %s, want %s", took, got, want)
		}
	}
}

// A thousand who began to wait at different times are looked at together.
func TestSettled_ManyWaitsShareLooks(t *testing.T) {
	r := newRoom(place{schema: "of_another_test"})
	begun := time.Now()
	for i := range 1000 {
		r.of[Event{"billing", "shop", fmt.Sprint(i)}] = &group{began: begun, next: begun.Add(time.Second + time.Duration(i)*latest/1000), end: make(chan struct{})}
	}
	looks, seen := 0, 0
	for now := begun.Add(time.Second); now.Before(begun.Add(2 * time.Second)); {
		events, rest, _ := r.due(now)
		if len(events) == 0 {
			now = now.Add(rest)
			continue
		}
		looks++
		seen += len(events)
		r.took(events, make([]finding, len(events)), nil, now, now)
		now = now.Add(soonest)
	}
	if looks > 25 || seen < 10_000 {
		t.Errorf("%d looks at %d events in a second, of a thousand that are looked at ten times: want about 20", looks, seen)
	}
}

// Somebody who comes later is not made to wait as long as the one before.
func TestSettled_ANewCallerIsLookedForAtOnce(t *testing.T) {
	p := place{schema: "of_this_test"}
	e := Event{"billing", "shop", "a"}
	r := newRoom(p)
	long := time.Now().Add(-time.Hour)
	mu.Lock()
	rooms[p] = r // without a goroutine
	mu.Unlock()
	_, g := enter(p, e, long)
	looked := func(at time.Time) int {
		t.Helper()
		events, _, _ := r.due(at)
		r.took(events, make([]finding, len(events)), nil, at, at)
		return len(events)
	}
	if n := looked(long); n != 1 {
		t.Fatalf("%d are due at first", n)
	}
	now := long.Add(time.Hour)
	if n := looked(now); n != 1 {
		t.Errorf("%d are due after an hour", n)
	}
	if events, rest, _ := r.due(now); len(events) > 0 || rest != latest {
		t.Errorf("%d are due, or in %s: want none, and in %s", len(events), rest, latest)
	}
	if _, again := enter(p, e, now); again != g || g.callers != 2 {
		t.Errorf("they do not share a group: %+v", again)
	}
	if n := looked(now); n != 1 {
		t.Errorf("%d are due, want 1", n)
	}
	if _, rest, _ := r.due(now); rest != soonest {
		t.Errorf("the next look is in %s, though somebody has just come: want %s", rest, soonest)
	}
	leave(r, e, g)
	if _, _, ended := r.due(now); ended {
		t.Error("the room is closed, though one waits")
	}
	leave(r, e, g)
	if _, _, ended := r.due(now); !ended {
		t.Error("the room is open, though nobody waits")
	}
}

// Of more than a look has, those go first of which something is told. All have their turn.
func TestSettled_WhatIsToldGoesBeforeWhatIsOnlyDue(t *testing.T) {
	p := place{schema: "of_that_test"}
	r := newRoom(p)
	mu.Lock()
	rooms[p] = r
	mu.Unlock()
	now := time.Now()
	all := map[Event]bool{}
	for i := range 3 * most {
		e := Event{"billing", "shop", fmt.Sprint(i)}
		all[e] = true
		enter(p, e, now)
	}
	for looks := 0; len(all) > 0; looks++ {
		events, _, _ := r.due(now)
		if len(events) == 0 || len(events) > most || looks > 3 {
			t.Fatalf("look %d has %d events, and %d are left", looks, len(events), len(all))
		}
		for _, e := range events {
			delete(all, e)
		}
		r.took(events, make([]finding, len(events)), nil, now, now)
	}
	told := Event{"billing", "shop", "17"}
	Tell(told.Consumer, told.Source, told.ID)
	if events, _, _ := r.due(now.Add(time.Minute)); len(events) != most || events[0] != told {
		t.Errorf("%d events, of which the first is %v", len(events), events[0])
	}
	mu.Lock()
	defer mu.Unlock()
	delete(rooms, p)
	waiting.Add(-int64(len(r.of)))
}
