package inbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/turns"
)

// job is the work of one transaction: an event, a batch of events of one type, or events of one key that follow a stored one.
type job struct {
	owner  jobOwner
	ctx    context.Context // of its handler
	stop   <-chan struct{} // when closed, delays end and nothing more is tried
	ds     []*delivery
	first  string  // the type of the first event: while a batch collects, the partition's mutex guards ds
	intake *intake // nil while its handler has to run first
	kind   jobKind
	single bool  // it was in a group that failed: it joins no other
	read   int64 // numbers the events that the node has read; a batch has the number of its first
	readAt time.Time

	turn     *turns.Turns // the job has one of them; nil if it needs none
	state    jobState
	follower *job // the next event of its key, if the same worker has taken it
}

// runsHandler reports that the job needs a turn if its type has a limit.
func (j *job) runsHandler() bool {
	return j.kind != jobFollowers && (j.intake == nil || !j.intake.h.Decided)
}

// leave ends the job's turn.
func (j *job) leave() {
	j.turn.Leave()
	j.turn = nil
}

// keys are the keys that the job occupies.
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

// jobKind says how the events of a job are taken in.
type jobKind int

const (
	jobAlone     jobKind = iota // one event; if it is stored, those that wait for it may be stored together
	jobBatch                    // events of a type that is handled in batches
	jobFollowers                // events of one key that follow a stored event: they are stored together
	jobApart                    // one event out of a job of several that failed: it stays alone
)

// jobState is how far a job has come. The partition's mutex guards it until a worker begins the job; then only the worker
// changes it.
//
//	open ── handed out ──► offered ── a worker begins it ──► closed ── no room for its event ──► held
//	  └──────────── the batch is full ───────────────────────┘
//
// A job that is no batch has all its events from the start. It stays open, unless its event finds no room.
type jobState int

const (
	jobOpen    jobState = iota // no worker has it; a batch collects events
	jobOffered                 // the workers have the batch; it collects events until one of them begins it
	jobClosed                  // the batch collects no more events
	jobHeld                    // its event found no room, and has not got through yet
)

// collects reports that a batch takes more events.
func (j *job) collects() bool { return j.state < jobClosed }

// close ends the collecting, and sorts the events in the order of the log: an event that had to wait for its key comes later in
// the log than some that were collected after it.
func (j *job) close() {
	if !j.collects() {
		return
	}
	j.state = jobClosed
	slices.SortFunc(j.ds, func(a, b *delivery) int { return cmp.Compare(a.from.offset, b.from.offset) })
}

// jobOwner is the partition of a job, as far as a worker needs it. A worker ends each job that it took with one of drop,
// putBack, split, setAside and conclude.
type jobOwner interface {
	stopped() bool                  // no more events may begin
	taken(j *job)                   // a worker begins the job: a batch collects no more events
	follower(j *job, most int) *job // the next of a job's key, for the worker that has the job
	settle(ds ...*delivery)         // the outcomes of events are durable
	drop(j *job)                    // the job is not begun
	putBack(j *job)                 // the job's follower waits again
	split(j *job)                   // the job's events come one by one
	setAside(j *job, err error)     // there is no room for the job's event
	conclude(j *job, err error)     // the job's events are settled, or err says why not
}

// joins reports that the job's events may be stored together with others of their key: each would be handled alone, and nothing
// is decided about them yet.
func (j *job) joins() bool { return (j.kind == jobAlone || j.kind == jobFollowers) && j.intake == nil }

func (j *job) bytes() (n int) {
	for _, d := range j.ds {
		n += len(d.e.Payload)
	}
	return n
}
