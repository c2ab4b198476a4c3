package retention

import "time"

// This file decides the pace. It is pure: values in, values out.

const (
	// share is the share of time in which retention may work. lateShare is the share while rows are overdue by more
	// than a tenth of the window. Otherwise the table would grow without end under a load that is more than the first can handle.
	share     = 0.03
	lateShare = 0.10

	// target is how long a turn should take. The sender of an event that a turn holds up waits that long at most.
	target = 50 * time.Millisecond

	// How many rows a turn reads at first, and the bounds within which that is adjusted to target.
	firstLimit = 1000
	leastLimit = 100
	mostLimit  = 5000

	// longestPause is the longest pause. If the next turn is further away than twice that, a wrong clock set it.
	longestPause = 10 * time.Minute
)

// mark is how far retention has come in a consumer's rows, in the order of processed_at. A nil from is the beginning; a nil kept
// means none.
type mark struct {
	from *time.Time // the next turn starts here
	kept *time.Time // the oldest row that this pass could not remove
}

// swept is what one turn did.
type swept struct {
	limit   int           // how many rows it was to read
	Read    int           // how many it read; if fewer than limit, no later row is old enough
	Removed int           // how many it removed
	More    bool          // there was no time for all sources with a window of their own
	last    *time.Time    // processed_at of the last row that it read
	kept    *time.Time    // processed_at of the oldest row that it left
	overdue time.Duration // how much older than the window the first row was
	took    time.Duration
}

// after moves the mark. A pass goes on after the rows that were read, so that rows which must stay are read once in each pass and
// not in each turn. The next pass begins at the oldest of them. It does not begin at the first index entry, since the entries
// there are of rows that have gone.
// Where sources have windows of their own (mixed), the rows between are others', too, and it would read them again: there the next pass goes on,
// and what had to stay is found by the pass that begins at the first row, once a day.
func (m mark) after(s swept, mixed bool) mark {
	if s.kept != nil && (m.kept == nil || s.kept.Before(*m.kept)) {
		m.kept = s.kept
	}
	if s.last != nil {
		m.from = s.last
	}
	if s.Read < s.limit { // The pass has ended.
		if m.kept != nil && !mixed {
			m.from = m.kept
		}
		m.kept = nil
	}
	return m
}

// stuck reports that a turn from the given mark read only rows of that one instant and removed none. The next turn would read the
// same rows.
func (s swept) stuck(from *time.Time) bool {
	return s.Read == s.limit && s.Removed == 0 && from != nil && s.last != nil && !s.last.After(*from)
}

// pace says how many rows the next turn reads, and how long after this turn it begins.
// stuck is that of one of its sweeps.
func pace(s swept, stuck bool, window time.Duration) (limit int, wait time.Duration) {
	part := share
	if s.overdue > window/10 {
		part = lateShare
	}
	wait = time.Duration(float64(s.took) * (1/part - 1))
	if s.Read < s.limit && !s.More {
		wait = max(wait, passEvery(window))
	}
	limit = min(s.limit, mostLimit)
	switch {
	case stuck:
		limit = 2 * s.limit
	case s.took > 2*target:
		limit = max(limit/2, leastLimit)
	case s.took < target/2 && s.Read == s.limit:
		limit = min(2*limit, mostLimit)
	}
	return limit, min(wait, longestPause)
}

// passEvery is the time from the end of a pass to the beginning of the next.
func passEvery(window time.Duration) time.Duration {
	return min(max(window/60, time.Second), time.Minute)
}
