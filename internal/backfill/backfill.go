// Package backfill says what becomes of backfills, by the table consumer_backfill that inbox.Inbox.ConsumeUntil writes. Status, the console
// and the metrics share it, so that they say the same of one backfill in the same words.
package backfill

import "time"

// Row is the last backfill of a consumer, as a node has told of it: a row of Rows, in the order of its columns.
type Row struct {
	Consumer        string
	Done, Remaining int64 // offsets
	Partitions      int
	PartitionsLeft  int
	Rate            float64 // offsets a second, in the last minute
	BeganAt, ToldAt time.Time
	Took, Told      int64 // seconds: how long it has been running, or took, and since a node told of it
	Ended           bool  // the call has returned
	Recent          bool  // a node has told of it within 30 s
	Waits           string
	Error           string // why it ended before its bound
}

// State is what becomes of it, for people.
func (r Row) State() string {
	switch {
	case r.Reached():
		return "done"
	case r.Ended:
		return "ended early: " + r.Error
	case !r.Runs():
		return "no node runs it"
	case r.Waits != "":
		return "waits: " + r.Waits
	default:
		return "runs"
	}
}

// Reached says that it ended at its bound.
func (r Row) Reached() bool { return r.Ended && r.Error == "" }

// Runs says that a node runs it, so that it has a rate.
func (r Row) Runs() bool { return !r.Ended && r.Recent }

// Waiting says that a node runs it, and that it waits.
func (r Row) Waiting() bool { return r.Runs() && r.Waits != "" }

// All is how many offsets there are in all.
func (r Row) All() int64 { return r.Done + r.Remaining }

// PartitionsDone is how many partitions are done.
func (r Row) PartitionsDone() int { return r.Partitions - r.PartitionsLeft }

// SecondsLeft is how long the rest takes at this rate, at most 30 years; -1 if nothing moves.
func (r Row) SecondsLeft() float64 {
	const most = 1e9
	switch {
	case r.Remaining == 0:
		return 0
	case r.Rate > 0:
		return min(float64(r.Remaining)/r.Rate, most)
	default:
		return -1
	}
}

// TimeLeft is SecondsLeft of one that a node runs; nil if that is not known.
func (r Row) TimeLeft() *time.Duration {
	seconds := r.SecondsLeft()
	if !r.Runs() || seconds < 0 {
		return nil
	}
	left := time.Duration(seconds * float64(time.Second))
	return &left
}
