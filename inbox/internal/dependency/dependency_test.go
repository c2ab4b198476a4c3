package dependency

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestDependency_TriesComeLessAndLessOften(t *testing.T) {
	t.Parallel()
	s, now := State{Since: start.Add(-time.Hour)}.Found(start, 0, 1), start
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, Cap, Cap} {
		if !s.Away || !s.Since.Equal(start) || s.Until.Sub(now) != want {
			t.Fatalf("try %d: %+v, want it after %s", i+1, s, want)
		}
		now = s.Until
		s = s.Tried(now, 0, false, 1)
	}
}

func TestDependency_OneThatComesAndGoesIsTriedLessOften(t *testing.T) {
	t.Parallel()
	for calmFor, want := range map[time.Duration]time.Duration{
		0: 4 * time.Second, calm - 1: 4 * time.Second, calm: 2 * time.Second, 2*calm + 1: time.Second, time.Hour: time.Second,
	} {
		s := State{Since: start}.Found(start, 0, 1)
		s = s.Tried(s.Until, 0, false, 1)
		s = s.Tried(s.Until, 0, false, 1)
		back := s.Until
		s = s.Back(back)
		if s.Away || !s.Since.Equal(back) || s.Tries != 2 {
			t.Fatalf("back: %+v", s)
		}
		again := back.Add(calmFor)
		if s = s.Found(again, 0, 1); s.Until.Sub(again) != want || !s.Since.Equal(again) {
			t.Errorf("away again after %s: %+v, want a try after %s", calmFor, s, want)
		}
	}
}

func TestDependency_WhatItAsksForIsKept(t *testing.T) {
	t.Parallel()
	for asked, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Millisecond: time.Second, 5 * time.Minute: 5 * time.Minute, MaxAsked + 1: MaxAsked,
	} {
		if s := (State{Since: start}).Found(start, asked, 1); s.Until.Sub(start) != want {
			t.Errorf("it asks for %s: tried after %s, want %s", asked, s.Until.Sub(start), want)
		}
		if s := (State{Away: true, Since: start}).Tried(start, asked, false, 1); s.Until.Sub(start) != max(want, 2*time.Second) {
			t.Errorf("a try, and it asks for %s: tried after %s, want %s", asked, s.Until.Sub(start), want)
		}
	}
}

// One event that is wrong, and of which others show that it is, leaves nothing behind.
func TestDependency_AWordThatNobodyConfirmsCountsForNothing(t *testing.T) {
	t.Parallel()
	s, now := State{Since: start}, start
	for range 20 {
		if s = s.Found(now, 0, 1); s.Until.Sub(now) != time.Second {
			t.Fatalf("%+v at %s", s, now)
		}
		now = s.Until
		s = s.Back(now)
	}
}

// Where one event alone says so, others that come do not wait for long.
func TestDependency_OneEventAloneIsTriedOften(t *testing.T) {
	t.Parallel()
	s := State{Since: start}.Found(start, 0, 1)
	for range 20 {
		now := s.Until
		if s = s.Tried(now, 0, true, 1); s.Until.Sub(now) > 4*time.Second {
			t.Fatalf("%+v at %s", s, now)
		}
	}
	if s = s.Tried(s.Until, 0, false, 1); s.Tries != aloneTries+1 {
		t.Errorf("another one's try: %+v", s)
	}
}

// Handlers that ran when it went all say so. None of them was a try.
func TestDependency_ManyWhoFindItAwayAreOne(t *testing.T) {
	t.Parallel()
	first := State{Since: start}.Found(start, 0, 1)
	if s := first.Found(start.Add(time.Millisecond), 0, 1); s != first {
		t.Errorf("%+v, want %+v", s, first)
	}
	if s := first.Found(start.Add(time.Millisecond), time.Minute, 1); s.Tries != 0 || !s.Until.Equal(start.Add(time.Millisecond+time.Minute)) {
		t.Errorf("another was asked to wait for longer: %+v", s)
	}
}

func TestDependency_AnythingElseLetsTheNextEventTry(t *testing.T) {
	t.Parallel()
	s := State{Since: start}.Found(start, 0, 1)
	now := start.Add(time.Second)
	if got := s.Unproven(now); !got.Away || !got.Until.Equal(now) || got.Tries != s.Tries || !got.Since.Equal(s.Since) {
		t.Errorf("%+v", got)
	}
	there := State{Since: start, Until: start, Tries: 2}
	if got := there.Unproven(now); got != there {
		t.Errorf("one that is there: %+v", got)
	}
	if got := there.Back(now); got != there {
		t.Errorf("one that is there is back: %+v", got)
	}
}

// Whatever happens, one that is away is tried again in time, and one that is there has no memory for long.
func TestDependency_ItIsAlwaysTriedAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, now := State{Since: start}, start
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Minute)).Draw(t, "passes")))
			asked := time.Duration(rapid.Int64Range(0, int64(2*MaxAsked)).Draw(t, "asked"))
			random := rapid.Float64Range(0, 1).Draw(t, "random")
			before := s
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				s = s.Found(now, asked, random)
			case 1:
				if s.Away {
					s = s.Tried(now, asked, rapid.Bool().Draw(t, "alone"), random)
				}
			case 2:
				s = s.Back(now)
			case 3:
				s = s.Unproven(now)
			}
			if s.Away && s.Until.After(now.Add(max(Cap, MaxAsked))) || s.Tries < 0 || s.Tries > mostTries || s.Since.After(now) {
				t.Fatalf("%+v became %+v at %s", before, s, now)
			}
			if s.Away && !before.Away && s.Until.Before(now.Add(Base/2)) {
				t.Fatalf("found at %s and tried at %s", now, s.Until)
			}
		}
	})
}
