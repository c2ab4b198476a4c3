// Package partitionqueue decides what of one partition a publisher sends next, and writes the answers. It knows no broker and no client.
package partitionqueue

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Queue has the events of one partition in a call of Publish. Next gives a batch, the caller sends it, Settle receives how it went.
//
//	        ┌────────────── acknowledged ─────────────┐
//	        ▼                                         │
//	Runs ─ Next ─► batch in flight ─ refused, records named ─► those are bad, the rest back on top
//	        ▲                      ├ refused for its length ──► all back on top, Limit halved
//	        │                      ├ refused, two or more ────► halves back on top, the first first
//	        │                      ├ refused, one ────────────► it is bad: later events of its key never leave
//	        └──────────────────────┴ any other failure ───────► everything left answers, nothing more leaves
//
// Invariant: Runs, read from the last to the first, holds ascending indexes without overlap, all above those of any batch that was
// acknowledged. So a partition's events leave in order whatever is refused.
type Queue struct {
	Topic     string
	Partition int
	Events    []holdfast.Event // of the whole call
	Answers   []error          // of the whole call; each index belongs to one queue
	Runs      [][]int32
	Limit     int // bytes of a batch of two or more

	// TooLongFunc says of the error of a refused batch that it is too long as a whole.
	TooLongFunc func(err error) bool

	// refused holds, by key, the first event that was refused. Later ones of the key are its followers: they are taken out of every
	// later part before that is sent, so that none overtakes it.
	refused map[string]refusal
}

// refusal is a bad event: where it stands, and the answer for those behind it.
type refusal struct {
	at     int32
	behind *publish.Error
}

// Next takes the next batch off the queue; nil when nothing is left. Followers of a refused event leave here, before the batch is cut. A
// batch keeps to Limit, or is a single event.
func (q *Queue) Next() []int32 {
	for len(q.Runs) > 0 {
		top := len(q.Runs) - 1
		run := q.withoutFollowers(q.Runs[top])
		q.Runs = q.Runs[:top]
		if len(run) == 0 {
			continue
		}
		n := q.fits(run)
		if n < len(run) {
			q.Runs = append(q.Runs, run[n:])
		}
		return run[:n:n]
	}
	return nil
}

// Drop takes events out that need not be sent; their answer is nil.
func (q *Queue) Drop(known func(e *holdfast.Event) bool) {
	for n, run := range q.Runs {
		kept := run[:0]
		for _, i := range run {
			if !known(&q.Events[i]) {
				kept = append(kept, i)
			}
		}
		q.Runs[n] = kept
	}
}

// SizeOf is how many bytes a batch has before it is packed, at most.
func (q *Queue) SizeOf(batch []int32) (size int) {
	for _, i := range batch {
		size += RecordSize(&q.Events[i])
	}
	return size
}

// RecordSize is how many bytes an event's record has in a batch before it is packed, at most.
func RecordSize(e *holdfast.Event) int {
	// Length, attributes, time, offset, the lengths of key and value, the number of headers.
	const frame = 5 + 1 + 1 + 3 + 3 + 5 + 2
	return frame + len(e.Key) + len(e.Payload) + wire.Size(*e)
}

// Settle takes in how the batch went: err nil when it was acknowledged, and records, by their place in the batch, when the broker named
// those to blame. An error of a record, if it has one, is its answer in place of the batch's. A refused batch has written nothing.
func (q *Queue) Settle(batch []int32, err *publish.Error, records map[int]error) {
	switch {
	case err == nil:
	case err.Fault != publish.FaultRecord:
		q.Abandon(batch, err)
	case len(batch) == 1:
		q.refuse(batch[0], err)
	case q.TooLongFunc(err):
		q.Limit = min(q.Limit, q.SizeOf(batch)/2) // so that this batch, at least, is cut
		q.Runs = append(q.Runs, batch)
	case named(batch, records):
		q.refuseNamed(batch, err, records)
	default:
		half := len(batch) / 2
		q.Runs = append(q.Runs, batch[half:], batch[:half:half])
	}
}

// Abandon ends the queue: the batch, which may be nil, failed for no record's fault, and what is behind it stays behind it.
func (q *Queue) Abandon(batch []int32, err *publish.Error) {
	for _, i := range batch {
		q.Answers[i] = err
	}
	behind := q.behind(err)
	for _, run := range q.Runs {
		for _, i := range q.withoutFollowers(run) {
			q.Answers[i] = behind
		}
	}
	q.Runs = nil
}

// withoutFollowers answers for those of run that follow a refused event, and returns the others, in the same memory.
func (q *Queue) withoutFollowers(run []int32) []int32 {
	if len(q.refused) == 0 {
		return run
	}
	kept := run[:0]
	for _, i := range run {
		if behind := q.follows(i); behind != nil {
			q.Answers[i] = behind
			continue
		}
		kept = append(kept, i)
	}
	return kept
}

// follows returns the answer for event i when it is behind a refused event of its key, else nil.
func (q *Queue) follows(i int32) *publish.Error {
	if r, ok := q.refused[q.Events[i].Key]; ok && i > r.at {
		return r.behind
	}
	return nil
}

// fits is how many of run, at least one, make a batch.
func (q *Queue) fits(run []int32) int {
	size := 0
	for n, i := range run {
		size += RecordSize(&q.Events[i])
		if size > q.Limit && n > 0 {
			return n
		}
	}
	return len(run)
}

// named says whether the broker named any record of the batch. If not, the batch must be divided to find out.
func named(batch []int32, records map[int]error) bool {
	for place := range records {
		if place >= 0 && place < len(batch) {
			return true
		}
	}
	return false
}

// refuseNamed refuses the records that the broker named. The others of the batch are sent next.
func (q *Queue) refuseNamed(batch []int32, err *publish.Error, records map[int]error) {
	rest := make([]int32, 0, len(batch))
	for place, i := range batch {
		why, bad := records[place]
		switch behind := q.follows(i); {
		case behind != nil:
			q.Answers[i] = behind
		case bad:
			own := *err
			if why != nil {
				own.Err = why
			}
			q.refuse(i, &own)
		default:
			rest = append(rest, i)
		}
	}
	q.Runs = append(q.Runs, rest)
}

// refuse answers for a bad event and remembers its key. An event without a key has no followers.
func (q *Queue) refuse(i int32, err *publish.Error) {
	q.Answers[i] = err
	key := q.Events[i].Key
	if key == "" {
		return
	}
	if q.refused == nil {
		q.refused = map[string]refusal{}
	}
	q.refused[key] = refusal{at: i, behind: q.behind(err)}
}

// behind is the answer for an event that was not sent because of err.
func (q *Queue) behind(err *publish.Error) *publish.Error {
	return &publish.Error{
		Topic:     q.Topic,
		Partition: q.Partition,
		Fault:     err.Fault,
		NotSent:   true,
		Err:       err,
	}
}
