package loop

import "time"

// This file computes delays. It is pure: values in, values out.

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
