package relay

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/retry"
)

// failing spaces the claims of lanes that end with errors again and again. It knows no clock, context or database. The zero
// value is ready.
type failing struct{ lanes map[int]failures }

// failures is how often a lane has failed with little time in between.
type failures struct {
	times     int
	claimedAt time.Time
	until     time.Time // it is not claimed before
}

// A lane that has failed twice in a row is left alone for a while, which grows with every time. One that runs for
// steadyAfter has recovered.
const steadyAfter = 10 * time.Second

var claimPolicy = retry.Policy{Attempts: -1, Base: 200 * time.Millisecond, Cap: 2 * time.Second}

// claimed records that a lane begins to run.
func (f *failing) claimed(lane int, now time.Time) {
	if f.lanes == nil {
		f.lanes = map[int]failures{}
	}
	l := f.lanes[lane]
	l.claimedAt = now
	f.lanes[lane] = l
}

// failures is how often a lane has failed in a row.
func (f *failing) failures(lane int) int { return f.lanes[lane].times }

// failed records that a lane ended with an error, and says how often it has. chance is in [0, 1).
func (f *failing) failed(lane int, now time.Time, chance float64) (times int) {
	l := f.lanes[lane]
	if now.Sub(l.claimedAt) >= steadyAfter {
		l.times = 0
	}
	if l.times++; l.times > 1 {
		l.until = now.Add(claimPolicy.Delay(l.times-1, 0.5+chance/2))
	}
	f.lanes[lane] = l
	return l.times
}

// resting are the lanes that must not be claimed now, by number.
func (f *failing) resting(now time.Time) (lanes []int16) {
	for n, l := range f.lanes {
		if now.Before(l.until) {
			lanes = append(lanes, int16(n))
		}
	}
	slices.Sort(lanes)
	return lanes
}

// next is how long it takes until one of the resting lanes may be claimed; wait, if that is less or none rests.
func (f *failing) next(now time.Time, wait time.Duration) time.Duration {
	for _, l := range f.lanes {
		if now.Before(l.until) {
			wait = min(wait, l.until.Sub(now))
		}
	}
	return wait
}
