package inbox

import (
	"testing"
	"time"
)

var times = defaultGroupTimes

func TestGrouping_WhichEventsMayShareATransaction(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	quick := timing{}.ran(100*time.Microsecond, now, times)
	for name, c := range map[string]struct {
		limit, waiting, workers int
		of                      timing
		follow                  bool
		at                      time.Time
		want                    int
	}{
		"as many as the limit":                           {64, 10_000, 8, timing{took: time.Microsecond}, false, now, 64},
		"the jobs that wait are shared among workers":    {64, 24, 8, quick, false, now, 4},
		"all wait for the one":                           {64, 0, 8, quick, true, now, 50},
		"nothing waits":                                  {64, 0, 8, quick, false, now, 1},
		"fewer wait than there are workers":              {64, 7, 8, quick, false, now, 1},
		"as many as take 5 ms":                           {64, 10_000, 8, timing{took: time.Millisecond}, false, now, 5},
		"one that takes longer":                          {64, 10_000, 8, timing{took: 6 * time.Millisecond}, false, now, 0},
		"off":                                            {1, 10_000, 8, quick, false, now, 1},
		"nothing is known of the type":                   {64, 10_000, 8, timing{}, false, now, 0},
		"the handler changes settings":                   {64, 10_000, 8, timing{took: 1, never: true}, false, now, 0},
		"it was slow once":                               {64, 10_000, 8, quick.ran(101*time.Millisecond, now, times), false, now.Add(5 * time.Second), 0},
		"that is a while ago":                            {64, 10_000, 8, quick.ran(101*time.Millisecond, now, times), false, now.Add(5050 * time.Millisecond), 47},
		"100 ms is not slow":                             {64, 10_000, 8, quick.ran(100*time.Millisecond, now, times), false, now, 47},
		"one of twenty waits for a processor":            {64, 10_000, 8, quick.rans(20, 100*time.Microsecond, 19, 30*time.Millisecond, 1), false, now, 49},
		"half of them do":                                {64, 10_000, 8, quick.rans(20, 100*time.Microsecond, 1, 30*time.Millisecond, 1), false, now, 40},
		"all of them do":                                 {64, 10_000, 8, quick.rans(100, 100*time.Microsecond, 0, 30*time.Millisecond, 1), false, now, 0},
		"a group of 64 failed":                           {64, 10_000, 8, timing{took: 1}.failed(64, now, times), false, now, 32},
		"a group of 3 failed":                            {64, 10_000, 8, timing{took: 1}.failed(3, now, times), false, now.Add(9 * time.Second), 0},
		"a group of 2 failed a while ago":                {64, 10_000, 8, timing{took: 1}.failed(2, now, times), false, now.Add(10 * time.Second), 2},
		"it fails again and again: twice as long":        {64, 10_000, 8, timing{took: 1}.failed(2, now, times).failed(2, now.Add(10*time.Second), times), false, now.Add(29 * time.Second), 0},
		"and no longer":                                  {64, 10_000, 8, timing{took: 1}.failed(2, now, times).failed(2, now.Add(10*time.Second), times), false, now.Add(30 * time.Second), 2},
		"it fails again after a success":                 {64, 10_000, 8, timing{took: 1}.failed(2, now, times).succeeded(2).failed(2, now, times), false, now.Add(10 * time.Second), 2},
		"a group of 64 failed, one of 32 succeeded":      {64, 10_000, 8, timing{took: 1}.failed(64, now, times).succeeded(32), false, now, 64},
		"a group of 64 failed, one of 31 succeeded":      {64, 10_000, 8, timing{took: 1}.failed(64, now, times).succeeded(31), false, now, 32},
		"one succeeded, and none has failed":             {64, 10_000, 8, timing{took: 1}.succeeded(1), false, now, 64},
		"a second slow event, less slow than the first":  {64, 10_000, 8, timing{took: 1}.ran(time.Second, now, times).ran(101*time.Millisecond, now, times), false, now.Add(49 * time.Second), 0},
		"the pause of a failure, after that of slowness": {64, 10_000, 8, timing{took: 1}.ran(time.Second, now, times).failed(2, now, times), false, now.Add(49 * time.Second), 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGrouping(c.limit, c.waiting, c.workers, times)
			for g.admits(c.of, c.follow && g.size > 0, c.at) {
				g = g.with(c.of, c.follow && g.size > 0)
			}
			if g.size != c.want {
				t.Errorf("%d events, want %d", g.size, c.want)
			}
		})
	}
}

// The type of an event that joins may lower the limit of the whole group, but joins only a group that is below it.
func TestGrouping_AGroupHasTheSmallestLimitOfItsTypes(t *testing.T) {
	now := time.Now()
	any, few := timing{took: 1}, timing{took: 1}.failed(8, now, times)
	g := newGrouping(64, 10_000, 1, times).with(any, false).with(few, false)
	for g.admits(any, false, now) {
		g = g.with(any, false)
	}
	if g.size != 4 {
		t.Errorf("with one of a type that failed in a group of 8 it has %d", g.size)
	}
	for g = newGrouping(64, 10_000, 1, times); g.size < 4; {
		g = g.with(any, false)
	}
	if g.admits(few, false, now) || !g.admits(any, false, now) {
		t.Error("one whose limit is 4 joined a group of 4")
	}
}

// rans is the timing after so many turns of events that are quick and events that are slow.
func (p timing) rans(turns int, quick time.Duration, quicks int, slow time.Duration, slows int) timing {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range turns {
		for range slows {
			p = p.ran(slow, now, times)
		}
		for range quicks {
			p = p.ran(quick, now, times)
		}
	}
	return p
}

func TestGrouping_TheTimeOfAHandlerIsWhatItTakesWhenItNeedNotWait(t *testing.T) {
	now := time.Now()
	p := timing{}.ran(0, now, times)
	if p.took != 1 {
		t.Errorf("a handler that took no time at all is as one that has never run: %s", p.took)
	}
	if p = (timing{}).ran(800, now, times).ran(1600, now, times); p.took != 850 {
		t.Errorf("got %d, want 850", p.took)
	}
	if p = p.ran(time.Millisecond, now, times); p.took != 904 {
		t.Errorf("got %d, want 904: no more counts than twice of what is usual", p.took)
	}
	if p = p.ran(104, now, times); p.took != 704 {
		t.Errorf("got %d, want 704", p.took)
	}
	for range 100 {
		p = p.ran(100, now, times)
	}
	if p.took < 100 || p.took > 103 {
		t.Errorf("after many of 100 it is %d", p.took)
	}
	for p = (timing{took: 1}); p.took < 1000; {
		before := p.took
		if p = p.ran(1000, now, times); p.took <= before {
			t.Fatalf("it stays at %d", p.took)
		}
	}
}

// Field by field: how long a type runs alone, how large its groups may be, and how that grows and shrinks.
func TestGrouping_WhatBecomesOfATiming(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct{ got, want timing }{
		"a slow event":                        {timing{took: 160}.ran(101*time.Millisecond, now, times), timing{took: 170, alone: after(5050 * time.Millisecond)}},
		"a less slow one does not shorten it": {timing{took: 160, alone: after(time.Hour)}.ran(101*time.Millisecond, now, times), timing{took: 170, alone: after(time.Hour)}},
		"an event that is not slow":           {timing{took: 160}.ran(240, now, times), timing{took: 165}},
		"a group of 6 failed":                 {timing{}.failed(6, now, times), timing{most: 3}},
		"a group of 4 failed":                 {timing{}.failed(4, now, times), timing{most: 2}},
		"a group of 3 failed":                 {timing{}.failed(3, now, times), timing{most: 2, alone: after(10 * time.Second), rests: 2}},
		"a group of 2 failed":                 {timing{}.failed(2, now, times), timing{most: 2, alone: after(10 * time.Second), rests: 2}},
		"and again":                           {timing{most: 2, rests: 2}.failed(2, now, times), timing{most: 2, alone: after(20 * time.Second), rests: 4}},
		"for the last time longer":            {timing{most: 2, rests: 64}.failed(2, now, times), timing{most: 2, alone: after(640 * time.Second), rests: 64}},
		"a failure does not shorten a rest":   {timing{alone: after(time.Hour)}.failed(2, now, times), timing{most: 2, alone: after(time.Hour), rests: 2}},
		"a group as large as it may be":       {timing{most: 2, rests: 4}.succeeded(2), timing{most: 4}},
		"a smaller one":                       {timing{most: 3, rests: 4}.succeeded(2), timing{most: 3, rests: 4}},
		"without a limit":                     {timing{rests: 4}.succeeded(1), timing{rests: 4}},
		"with the smallest limit":             {timing{most: 1}.succeeded(1), timing{most: 2}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
	one := timing{took: 1, most: 1}
	if newGrouping(64, 10_000, 1, times).with(timing{took: 1}, false).admits(one, false, now) {
		t.Error("an event that stays alone joined another")
	}
	if g := newGrouping(64, 10_000, 1, times).with(one, false); g.most != 1 || g.admits(one, false, now) || g.admits(timing{took: 1}, false, now) {
		t.Errorf("a group with an event that stays alone is %+v", g)
	}
}
