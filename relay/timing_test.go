package relay

import (
	"testing"
	"testing/synctest"
	"time"
)

// A timer in the past would make a lane turn without a pause until something else happens.
func TestTiming_TheTimerIsNeverInThePastForWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		ago := func(d time.Duration) time.Time { return now.Add(-d) }
		inCalls := func(began time.Time) (all []*destination) {
			for range maxCalls {
				all = append(all, &destination{call: []*pending{{}}, began: began})
			}
			return all
		}
		waits := func(retryAt time.Time) *destination { return &destination{queue: []*pending{{}}, retryAt: retryAt} }
		for _, c := range []struct {
			name         string
			outage       *hold
			destinations []*destination
			calls        int
			want         time.Time
		}{
			{name: "it waits before it tries again", destinations: []*destination{waits(now.Add(time.Second))}, want: now.Add(time.Second)},
			{name: "every call is in use", destinations: append(inCalls(ago(300*time.Millisecond)), waits(ago(time.Second))), calls: maxCalls, want: now.Add(700 * time.Millisecond)},
			{name: "every call is in use, one is slow", destinations: append(inCalls(ago(300*time.Millisecond)), &destination{call: []*pending{{}}, began: ago(2 * time.Second)}, waits(now.Add(time.Second))),
				calls: maxCalls + 1, want: now.Add(700 * time.Millisecond)},
			{name: "an outage, and nothing to send", outage: &hold{nextAt: ago(time.Second)}},
			{name: "an outage, and what is queued waits longer", outage: &hold{nextAt: ago(time.Second)}, destinations: []*destination{waits(now.Add(2 * time.Second))}, want: now.Add(2 * time.Second)},
			{name: "an outage, and what is queued may go", outage: &hold{nextAt: now.Add(time.Second)}, destinations: []*destination{waits(time.Time{})}, want: now.Add(time.Second)},
			{name: "an outage that a call is trying", outage: &hold{nextAt: ago(time.Second)}, destinations: append(inCalls(now)[:1], waits(time.Time{})), calls: 1},
		} {
			l := newLane(&Relay{c: Config{ParkAfter: -1}, env: env{now: time.Now}}, "", time.Time{})
			l.outage, l.destinations, l.calls = c.outage, c.destinations, c.calls
			if at := l.dueAt(); !at.Equal(c.want) {
				t.Errorf("%s: %v after now, want %v", c.name, at.Sub(now), c.want.Sub(now))
			}
		}
	})
}

func TestTiming_CallsThatEndLateWithoutAnAnswerGetSmaller(t *testing.T) {
	trouble, well := summary{trouble: answer{fault: FaultPartition}}, summary{answers: true}
	for _, c := range []struct {
		most, sent int
		took       time.Duration
		said       summary
		want       int
	}{
		{0, 200, slowAfter, trouble, 100}, {100, 100, slowAfter, trouble, 50}, {1, 1, slowAfter, trouble, 1}, {0, 3, slowAfter, trouble, 1},
		{0, 200, slowAfter - 1, trouble, 0}, {50, 50, slowAfter - 1, trouble, 50}, // refused at once, not for its size
		{0, 200, slowAfter, well, 0}, {50, 50, slowAfter, well, 63},
		{0, 200, 0, well, 0}, {1, 1, 0, well, 2}, {50, 50, 0, well, 63}, {159, 3, 0, well, 199}, {160, 3, 0, well, 0},
	} {
		if got := nextMost(c.most, c.sent, 200, c.took, c.said); got != c.want {
			t.Errorf("after %d of %d in %v, %+v: %d, want %d", c.sent, c.most, c.took, c.said, got, c.want)
		}
	}
}
