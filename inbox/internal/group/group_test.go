package group

import (
	"testing"
	"time"
)

var times = DefaultTimes

func TestGroup_WhichEventsMayShareATransaction(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	quick := Timing{}.Ran(100*time.Microsecond, now, times)
	for name, c := range map[string]struct {
		limit, waiting, workers int
		of                      Timing
		follow                  bool
		at                      time.Time
		want                    int
	}{
		"as many as the limit":                           {64, 10_000, 8, Timing{took: time.Microsecond}, false, now, 64},
		"the jobs that wait are shared among workers":    {64, 24, 8, quick, false, now, 4},
		"all wait for the one":                           {64, 0, 8, quick, true, now, 50},
		"nothing waits":                                  {64, 0, 8, quick, false, now, 1},
		"fewer wait than there are workers":              {64, 7, 8, quick, false, now, 1},
		"as many as take 5 ms":                           {64, 10_000, 8, Timing{took: time.Millisecond}, false, now, 5},
		"one that takes longer":                          {64, 10_000, 8, Timing{took: 6 * time.Millisecond}, false, now, 0},
		"off":                                            {1, 10_000, 8, quick, false, now, 1},
		"nothing is known of the type":                   {64, 10_000, 8, Timing{}, false, now, 0},
		"the handler changes settings":                   {64, 10_000, 8, Timing{took: 1, never: true}, false, now, 0},
		"it was slow once":                               {64, 10_000, 8, quick.Ran(101*time.Millisecond, now, times), false, now.Add(5 * time.Second), 0},
		"that is a while ago":                            {64, 10_000, 8, quick.Ran(101*time.Millisecond, now, times), false, now.Add(5050 * time.Millisecond), 47},
		"100 ms is not slow":                             {64, 10_000, 8, quick.Ran(100*time.Millisecond, now, times), false, now, 47},
		"one of twenty waits for a processor":            {64, 10_000, 8, quick.rans(20, 100*time.Microsecond, 19, 30*time.Millisecond, 1), false, now, 49},
		"half of them do":                                {64, 10_000, 8, quick.rans(20, 100*time.Microsecond, 1, 30*time.Millisecond, 1), false, now, 40},
		"all of them do":                                 {64, 10_000, 8, quick.rans(100, 100*time.Microsecond, 0, 30*time.Millisecond, 1), false, now, 0},
		"a group of 64 failed":                           {64, 10_000, 8, Timing{took: 1}.Failed(64, now, times), false, now, 32},
		"a group of 3 failed":                            {64, 10_000, 8, Timing{took: 1}.Failed(3, now, times), false, now.Add(9 * time.Second), 0},
		"a group of 2 failed a while ago":                {64, 10_000, 8, Timing{took: 1}.Failed(2, now, times), false, now.Add(10 * time.Second), 2},
		"it fails again and again: twice as long":        {64, 10_000, 8, Timing{took: 1}.Failed(2, now, times).Failed(2, now.Add(10*time.Second), times), false, now.Add(29 * time.Second), 0},
		"and no longer":                                  {64, 10_000, 8, Timing{took: 1}.Failed(2, now, times).Failed(2, now.Add(10*time.Second), times), false, now.Add(30 * time.Second), 2},
		"it fails again after a success":                 {64, 10_000, 8, Timing{took: 1}.Failed(2, now, times).Succeeded(2).Failed(2, now, times), false, now.Add(10 * time.Second), 2},
		"a group of 64 failed, one of 32 succeeded":      {64, 10_000, 8, Timing{took: 1}.Failed(64, now, times).Succeeded(32), false, now, 64},
		"a group of 64 failed, one of 31 succeeded":      {64, 10_000, 8, Timing{took: 1}.Failed(64, now, times).Succeeded(31), false, now, 32},
		"one succeeded, and none has failed":             {64, 10_000, 8, Timing{took: 1}.Succeeded(1), false, now, 64},
		"a second slow event, less slow than the first":  {64, 10_000, 8, Timing{took: 1}.Ran(time.Second, now, times).Ran(101*time.Millisecond, now, times), false, now.Add(49 * time.Second), 0},
		"the pause of a failure, after that of slowness": {64, 10_000, 8, Timing{took: 1}.Ran(time.Second, now, times).Failed(2, now, times), false, now.Add(49 * time.Second), 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := New(c.limit, c.waiting, c.workers, times)
			for g.Admits(c.of, c.follow && g.size > 0, c.at) {
				g = g.With(c.of, c.follow && g.size > 0)
			}
			if g.size != c.want {
				t.Errorf("%d events, want %d", g.size, c.want)
			}
		})
	}
}

// The type of an event that joins may lower the limit of the whole group, but joins only a group that is below it.
func TestGroup_AGroupHasTheSmallestLimitOfItsTypes(t *testing.T) {
	now := time.Now()
	any, few := Timing{took: 1}, Timing{took: 1}.Failed(8, now, times)
	g := New(64, 10_000, 1, times).With(any, false).With(few, false)
	for g.Admits(any, false, now) {
		g = g.With(any, false)
	}
	if g.size != 4 {
		t.Errorf("with one of a type that failed in a group of 8 it has %d", g.size)
	}
	for g = New(64, 10_000, 1, times); g.size < 4; {
		g = g.With(any, false)
	}
	if g.Admits(few, false, now) || !g.Admits(any, false, now) {
		t.Error("one whose limit is 4 joined a group of 4")
	}
}

// rans is the timing after so many turns of events that are quick and events that are slow.
func (t Timing) rans(turns int, quick time.Duration, quicks int, slow time.Duration, slows int) Timing {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range turns {
		for range slows {
			t = t.Ran(slow, now, times)
		}
		for range quicks {
			t = t.Ran(quick, now, times)
		}
	}
	return t
}

func TestGroup_TheTimeOfAHandlerIsWhatItTakesWhenItNeedNotWait(t *testing.T) {
	now := time.Now()
	p := Timing{}.Ran(0, now, times)
	if p.took != 1 {
		t.Errorf("a handler that took no time at all is as one that has never run: %s", p.took)
	}
	if p = (Timing{}).Ran(800, now, times).Ran(1600, now, times); p.took != 850 {
		t.Errorf("got %d, want 850", p.took)
	}
	if p = p.Ran(time.Millisecond, now, times); p.took != 904 {
		t.Errorf("got %d, want 904: no more counts than twice of what is usual", p.took)
	}
	if p = p.Ran(104, now, times); p.took != 704 {
		t.Errorf("got %d, want 704", p.took)
	}
	for range 100 {
		p = p.Ran(100, now, times)
	}
	if p.took < 100 || p.took > 103 {
		t.Errorf("after many of 100 it is %d", p.took)
	}
	for p = (Timing{took: 1}); p.took < 1000; {
		before := p.took
		if p = p.Ran(1000, now, times); p.took <= before {
			t.Fatalf("it stays at %d", p.took)
		}
	}
}

// Field by field: how long a type runs alone, how large its groups may be, and how that grows and shrinks.
func TestGroup_WhatBecomesOfATiming(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct{ got, want Timing }{
		"a slow event":                        {Timing{took: 160}.Ran(101*time.Millisecond, now, times), Timing{took: 170, alone: after(5050 * time.Millisecond)}},
		"a less slow one does not shorten it": {Timing{took: 160, alone: after(time.Hour)}.Ran(101*time.Millisecond, now, times), Timing{took: 170, alone: after(time.Hour)}},
		"an event that is not slow":           {Timing{took: 160}.Ran(240, now, times), Timing{took: 165}},
		"a group of 6 failed":                 {Timing{}.Failed(6, now, times), Timing{most: 3}},
		"a group of 4 failed":                 {Timing{}.Failed(4, now, times), Timing{most: 2}},
		"a group of 3 failed":                 {Timing{}.Failed(3, now, times), Timing{most: 2, alone: after(10 * time.Second), rests: 2}},
		"a group of 2 failed":                 {Timing{}.Failed(2, now, times), Timing{most: 2, alone: after(10 * time.Second), rests: 2}},
		"and again":                           {Timing{most: 2, rests: 2}.Failed(2, now, times), Timing{most: 2, alone: after(20 * time.Second), rests: 4}},
		"for the last time longer":            {Timing{most: 2, rests: 64}.Failed(2, now, times), Timing{most: 2, alone: after(640 * time.Second), rests: 64}},
		"a failure does not shorten a rest":   {Timing{alone: after(time.Hour)}.Failed(2, now, times), Timing{most: 2, alone: after(time.Hour), rests: 2}},
		"a group as large as it may be":       {Timing{most: 2, rests: 4}.Succeeded(2), Timing{most: 4}},
		"a smaller one":                       {Timing{most: 3, rests: 4}.Succeeded(2), Timing{most: 3, rests: 4}},
		"without a limit":                     {Timing{rests: 4}.Succeeded(1), Timing{rests: 4}},
		"with the smallest limit":             {Timing{most: 1}.Succeeded(1), Timing{most: 2}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
	one := Timing{took: 1, most: 1}
	if New(64, 10_000, 1, times).With(Timing{took: 1}, false).Admits(one, false, now) {
		t.Error("an event that stays alone joined another")
	}
	if g := New(64, 10_000, 1, times).With(one, false); g.most != 1 || g.Admits(one, false, now) || g.Admits(Timing{took: 1}, false, now) {
		t.Errorf("a group with an event that stays alone is %+v", g)
	}
}

func TestGroup_EachTypeHasItsTiming(t *testing.T) {
	now := time.Now()
	var all Timings
	if got := all.Get("a"); got != (Timing{}) {
		t.Errorf("a type that has not run has the timing %+v", got)
	}
	all.Change("a", func(p Timing) Timing { return p.Ran(7, now, times) })
	all.Change("b", func(p Timing) Timing { return p.Ran(9, now, times) })
	all.Change("a", func(p Timing) Timing { return p.UpTo(3, false) })
	if got, want := all.Get("a"), (Timing{took: 7, most: 3}); got != want {
		t.Errorf("it is %+v, want %+v", got, want)
	}
	if got := all.Get("b"); got != (Timing{took: 9}) {
		t.Errorf("the other type has %+v", got)
	}
}

func TestGroup_ARegistrationBoundsItsGroups(t *testing.T) {
	for name, c := range map[string]struct{ got, want Timing }{
		"no limit of its own":           {Timing{}.UpTo(5, false), Timing{most: 5}},
		"a lower one after a failure":   {Timing{most: 2}.UpTo(5, false), Timing{most: 2}},
		"a higher one after a success":  {Timing{most: 8}.UpTo(5, false), Timing{most: 5}},
		"groups of one":                 {Timing{}.UpTo(1, false), Timing{most: 1, never: true}},
		"its handler needs its own":     {Timing{}.UpTo(5, true), Timing{most: 5, never: true}},
		"it is known to run alone":      {Timing{never: true}.UpTo(5, false), Timing{most: 5, never: true}},
		"one that is as low as another": {Timing{most: 5}.UpTo(5, false), Timing{most: 5}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}
