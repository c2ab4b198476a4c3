package inbox

import "time"

// This file decides the pace of retention and does nothing: values in, values out.

const (
	// retentionShare is how much of the time retention may work; retentionLate is the share while rows are overdue by more
	// than a tenth of the window, because the table would grow without end if what comes in were more than the first.
	retentionShare = 0.03
	retentionLate  = 0.10

	// retentionTarget is how long a turn should take: the sender of one of its events waits that long at most.
	retentionTarget = 50 * time.Millisecond

	// How many rows a turn reads: at first, and within which bounds it is fitted to retentionTarget.
	retentionFirst = 1000
	retentionLeast = 100
	retentionMost  = 5000

	// retentionPause is the longest pause. A next turn further away than twice that was set by a clock that was wrong.
	retentionPause = 10 * time.Minute
)

// mark is where retention stands among a consumer's rows, which it reads in the order of processed_at. Nil stands for
// the beginning, and for none.
type mark struct {
	from *time.Time // where the next turn reads on
	kept *time.Time // the oldest row that this pass has met and could not remove
}

// swept is what one turn did.
type swept struct {
	limit   int           // how many rows it was to read
	read    int           // how many it read; fewer than limit: nothing behind them is old enough
	removed int           //
	last    *time.Time    // processed_at of the last that it read
	kept    *time.Time    // processed_at of the oldest that it left
	overdue time.Duration // how long the first that it read was older than the window
	took    time.Duration
}

// after moves the mark. A pass goes on behind what was read, so that rows which must stay are read once in each pass,
// not in each turn; the next pass begins at the oldest of them, not at the beginning, where the index holds nothing but
// entries of rows that have gone.
func (m mark) after(s swept) mark {
	if s.kept != nil && (m.kept == nil || s.kept.Before(*m.kept)) {
		m.kept = s.kept
	}
	if s.last != nil {
		m.from = s.last
	}
	if s.read < s.limit { // The pass is over.
		if m.kept != nil {
			m.from = m.kept
		}
		m.kept = nil
	}
	return m
}

// stuck says that a turn that began at from read nothing but rows of that one instant, and removed none: the next would
// read the same ones.
func (s swept) stuck(from *time.Time) bool {
	return s.read == s.limit && s.removed == 0 && from != nil && s.last != nil && !s.last.After(*from)
}

// pace says how many rows the next turn reads, and how long after this one it begins.
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

// retentionEvery is how long after the end of a pass the next one begins.
func retentionEvery(window time.Duration) time.Duration {
	return min(max(window/60, time.Second), time.Minute)
}
