package relay

import (
	"slices"
	"testing"
	"time"
)

func TestFailing_ALaneThatKeepsFailingRestsLongerEachTime(t *testing.T) {
	t.Parallel()
	var f failing
	now := time.Unix(0, 0)
	var rests []time.Duration
	for times := 1; times <= 10; times++ {
		f.claimed(3, now)
		now = now.Add(time.Millisecond)
		if got := f.failed(3, now, 1); got != times {
			t.Fatalf("failure %d counts as %d", times, got)
		}
		rest := f.next(now, time.Hour)
		if rest == time.Hour {
			rest = 0
		}
		rests = append(rests, rest)
		if resting := f.resting(now); slices.Contains(resting, 3) != (rest > 0) {
			t.Errorf("after failure %d it rests for %v, and %v rest", times, rest, resting)
		}
		now = now.Add(rest)
		if resting := f.resting(now); len(resting) > 0 {
			t.Errorf("after its rest %v still rest", resting)
		}
	}
	want := []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond,
		2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second}
	if !slices.Equal(rests, want) {
		t.Errorf("it rests %v, want %v", rests, want)
	}
}

func TestFailing_ALaneThatRanForAWhileHasRecovered(t *testing.T) {
	t.Parallel()
	var f failing
	now := time.Unix(0, 0)
	for range 5 {
		f.claimed(0, now)
		f.failed(0, now, 0)
	}
	f.claimed(0, now)
	if times := f.failed(0, now.Add(steadyAfter), 0); times != 1 {
		t.Errorf("a failure after %v counts as number %d", steadyAfter, times)
	}
	if rest := f.next(now.Add(time.Minute), time.Hour); rest != time.Hour {
		t.Errorf("with nobody resting the wait is %v", rest)
	}
}

func TestFailing_LanesRestWithJitterEachForItself(t *testing.T) {
	t.Parallel()
	var f failing
	now := time.Unix(0, 0)
	for lane, chance := range []float64{0, 0.999} {
		for range 3 {
			f.claimed(lane, now)
			f.failed(lane, now, chance)
		}
	}
	if resting := f.resting(now.Add(300 * time.Millisecond)); !slices.Equal(resting, []int16{1}) {
		t.Errorf("after 300ms %v rest, want lane 1: it drew the longer rest", resting)
	}
}
