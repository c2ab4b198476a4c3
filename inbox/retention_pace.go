package inbox

import "time"

// This file decides the pace of retention. It is pure: values in, values out.

const (
	// retentionShare is the share of time in which retention may work. retentionLate is the share while rows are overdue by more
	// than a tenth of the window. Otherwise the table would grow without end under a load that is more than the first can handle.
	retentionShare = 0.03
	retentionLate  = 0.10

	// retentionTarget is how long a turn should take. The sender of an event that a turn holds up waits that long at most.
	retentionTarget = 50 * time.Millisecond

	// How many rows a turn reads at first, and the bounds within which that is adjusted to retentionTarget.
	retentionFirst = 1000
	retentionLeast = 100
	retentionMost  = 5000

	// retentionPause is the longest pause. If the next turn is further away than twice that, a wrong clock set it.
	retentionPause = 10 * time.Minute
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
	read    int           // how many it read; if fewer than limit, no later row is old enough
	removed int           // how many it removed
	last    *time.Time    // processed_at of the last row that it read
	kept    *time.Time    // processed_at of the oldest row that it left
	overdue time.Duration // how much older than the window the first row was
	took    time.Duration
}

// after moves the mark. A pass goes on after the rows that were read, so that rows which must stay are read once in each pass and
// not in each turn. The next pass begins at the oldest of them. It does not begin at the first index entry, since the entries
// there are of rows that have gone.
func (m mark) after(s swept) mark {
	if s.kept != nil && (m.kept == nil || s.kept.Before(*m.kept)) {
		m.kept = s.kept
	}
	if s.last != nil {
		m.from = s.last
	}
	if s.read < s.limit { // The pass has ended.
		if m.kept != nil {
			m.from = m.kept
		}
		m.kept = nil
	}
	return m
}

// stuck reports that a turn from the given mark read only rows of that one instant and removed none. The next turn would read the
// same rows.
func (s swept) stuck(from *time.Time) bool {
	return s.read == s.limit && s.removed == 0 && from != nil && s.last != nil && !s.last.After(*from)
}

// pace says how many rows the next turn reads, and how long after this turn it begins.
func pace(s swept, from *time.Time, window time.Duration) (limit int, wait time.Duration) {
	share := retentionShare
	if s.overdue > window/10 {
		share = retentionLate
	}
	wait = time.Duration(float64(s.took) * (1/share - 1))
	if s.read < s.limit {
		wait = max(wait, retentionEvery(window))
	}
	limit = min(s.limit, retentionMost)
	switch {
	case s.stuck(from):
		limit = 2 * s.limit
	case s.took > 2*retentionTarget:
		limit = max(limit/2, retentionLeast)
	case s.took < retentionTarget/2 && s.read == s.limit:
		limit = min(2*limit, retentionMost)
	}
	return limit, min(wait, retentionPause)
}

// retentionEvery is the time from the end of a pass to the beginning of the next.
func retentionEvery(window time.Duration) time.Duration {
	return min(max(window/60, time.Second), time.Minute)
}
