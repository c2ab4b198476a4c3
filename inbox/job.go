package inbox

import (
	"cmp"
	"context"
	"slices"
)

// job is one transaction's worth of work: an event, a batch of events of one type, or events of one key that wait behind it.
type job struct {
	owner  jobOwner
	ctx    context.Context // of its handler
	stop   <-chan struct{} // closed when no more pauses are to be made
	ds     []*delivery
	intake *intake // where it does not begin by running the handler, or has something behind it
	kind   jobKind
	read   int64 // the number of its event, or of the one that began its batch, among all that the node has read

	state    jobState
	follower *job // the next event of its key, where the same worker has taken it
}

// keys are the keys that the job keeps busy.
func (j *job) keys() []string {
	if len(j.ds) == 1 {
		if key := j.ds[0].e.Key; key != "" {
			return []string{key}
		}
		return nil
	}
	var keys []string
	seen := make(map[string]bool, len(j.ds))
	for _, d := range j.ds {
		if d.e.Key != "" && !seen[d.e.Key] {
			seen[d.e.Key] = true
			keys = append(keys, d.e.Key)
		}
	}
	return keys
}

// jobKind is how the events of a job are taken in.
type jobKind int

const (
	jobAlone     jobKind = iota // one event; where it is stored, those that follow of its key may be stored together
	jobBatch                    // one event or more of a type that is handled in batches
	jobFollowers                // events of one key, behind what is stored of that: they are stored together
	jobApart                    // one event of a job of several that had to be taken apart: it stays alone
)

// jobState is how far a job is. The partition's mutex guards it.
//
//	open ── offered to the workers ──► offered ── a worker begins it ──► closed ── no room for its event ──► held
//	  └────────────────── the batch is full ─────────────────────────────┘
//
// A job that is no batch has one event from the start: it is open until it is held.
type jobState int

const (
	jobOpen    jobState = iota // no worker has it; a batch takes more events
	jobOffered                 // the workers have the batch; it takes more events until one of them begins it
	jobClosed                  // the batch takes no more events
	jobHeld                    // there was no room for its event, and it has not got through yet
)

// collects says that the batch takes more events.
func (j *job) collects() bool { return j.state < jobClosed }

// close ends the collecting of a batch. Its events are in the order of the log from then on: one that waited for its key is
// later in the log than some that came after it.
func (j *job) close() {
	if !j.collects() {
		return
	}
	j.state = jobClosed
	slices.SortFunc(j.ds, func(a, b *delivery) int { return cmp.Compare(a.from.offset, b.from.offset) })
}

// jobOwner is the partition that a job is of, as far as a worker needs it. Each job that a worker has ends with one of
// drop, putBack, split, setAside and conclude.
type jobOwner interface {
	stopped() bool                  // no more events are to be begun
	taken(j *job)                   // a worker begins the job: a batch takes no more events
	follower(j *job, most int) *job // what waits behind a job of one key, for the worker that has it
	settle(ds ...*delivery)         // what became of events is durable
	drop(j *job)                    // it is not begun
	putBack(j *job)                 // its follower waits again
	split(j *job)                   // its events come one by one
	setAside(j *job, err error)     // there is no room for its event
	conclude(j *job, err error)     // its events are settled, or err says why not
}

// joins says that the job's events may be stored together with others of their key: each would be handled by itself, and nothing
// is known yet of what becomes of it.
func (j *job) joins() bool { return (j.kind == jobAlone || j.kind == jobFollowers) && j.intake == nil }

func (j *job) bytes() (n int) {
	for _, d := range j.ds {
		n += len(d.e.Payload)
	}
	return n
}
