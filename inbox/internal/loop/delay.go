package loop

import "time"

// This file computes delays. It is pure: values in, values out.

// The shortest and the longest delays: after contention, while the database or the broker is away, while there is no room, and of retries
// at once. DatabaseCap is also how long a consumer may go on waiting once the database, or the
// broker, is back: so it is short, although an outage may be long.
const (
	ContendedBase, ContendedCap = 2 * time.Millisecond, 200 * time.Millisecond
	DatabaseBase, DatabaseCap   = 50 * time.Millisecond, 2 * time.Second
	FullBase, FullCap           = 500 * time.Millisecond, 10 * time.Second
	ImmediateBase, ImmediateCap = 20 * time.Millisecond, 200 * time.Millisecond
)

// CapacityDelay is how long a partition waits before it tries the next event that found no room. tries counts tries in a row
// that found none. With many events waiting, each is tried about as often as if it were alone, but the partition tries at
// most every FullBase.
func CapacityDelay(tries, waiting int, random float64) time.Duration {
	return max(Spread(FullBase, FullCap, tries, random)/time.Duration(waiting), FullBase)
}

// Rest is how long a loop pauses after a turn: a multiple of the turn's time, so that the loop is no load on a busy database,
// within least and most. Without most, one lost answer would be followed by minutes without a turn.
func Rest(took time.Duration, times int, least, most time.Duration) time.Duration {
	return min(max(time.Duration(times)*took, least), most)
}

// Spread is a delay with equal jitter: at least half of a ceiling that doubles from base to limit.
func Spread(base, limit time.Duration, attempt int, random float64) time.Duration {
	ceiling := limit
	if doublings := max(attempt, 1) - 1; doublings < 32 && base<<doublings < limit {
		ceiling = base << doublings
	}
	return ceiling/2 + time.Duration(random*float64(ceiling/2))
}
