package inbox

import "time"

// This file says how long to wait. It does nothing: values in, values out.

// The shortest and the longest waits.
const (
	contendedBase, contendedCap = 2 * time.Millisecond, 200 * time.Millisecond
	databaseBase, databaseCap   = 50 * time.Millisecond, 15 * time.Second
	fullBase, fullCap           = 500 * time.Millisecond, 10 * time.Second
	immediateBase, immediateCap = 20 * time.Millisecond, 200 * time.Millisecond
)

// capacityDelay is how long a partition waits before it tries the next of the events that wait for room, after so many tries
// in a row that found none. Of many, each is tried about as often as if it were alone, down to a try every fullBase.
func capacityDelay(tries, waiting int, random float64) time.Duration {
	return max(spread(fullBase, fullCap, tries, random)/time.Duration(waiting), fullBase)
}

// rest is how long a loop pauses after a turn that took so long: times as long, so that it is no load for a busy database,
// but at least and at most so long. Without a most, one answer that was lost would be followed by minutes of nothing.
func rest(took time.Duration, times int, least, most time.Duration) time.Duration {
	return min(max(time.Duration(times)*took, least), most)
}

// spread is a delay with equal jitter: at least half of what doubles from base to limit, so that a wait is a wait.
func spread(base, limit time.Duration, attempt int, random float64) time.Duration {
	ceiling := limit
	if doublings := max(attempt, 1) - 1; doublings < 32 && base<<doublings < limit {
		ceiling = base << doublings
	}
	return ceiling/2 + time.Duration(random*float64(ceiling/2))
}
