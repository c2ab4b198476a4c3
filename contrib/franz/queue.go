package franz

import (
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
)

// queue decides what of one partition is sent next, and writes the answers. It knows no broker: next gives a batch, the caller sends
// it, settle receives how it went.
//
//	        ┌────────────── acknowledged ─────────────┐
//	        ▼                                         │
//	runs ─ next ─► batch in flight ─ refused, records named ─► those are bad, the rest back on top
//	        ▲                      ├ refused for its length ──► all back on top, limit halved
//	        │                      ├ refused, two or more ────► halves back on top, the first first
//	        │                      ├ refused, one ────────────► it is bad: later events of its key never leave
//	        └──────────────────────┴ any other failure ───────► everything left answers, nothing more leaves
//
// Invariant: runs, read from the last to the first, holds ascending indexes without overlap, all above those of any batch that was
// acknowledged. So a partition's events leave in order whatever is refused.
type queue struct {
	place
	info    *topicInfo
	events  []holdfast.Event
	answers []error // of the whole call; each index belongs to one queue
	runs    [][]int32
	limit   int  // bytes of a batch of two or more
	alone   bool // something of it was refused: it shares no batch with others

	// refused holds, by key, the answer for what follows the first event of the key that was refused, and where that stands.
	refused map[string]refusal
}

type refusal struct {
	at     int32
	behind *relay.PublishError
}

// next takes the next batch off the queue; nil when nothing is left. A batch keeps to limit, or is a single event.
func (q *queue) next() []int32 {
	for len(q.runs) > 0 {
		top := len(q.runs) - 1
		run := q.withoutFollowers(q.runs[top])
		q.runs = q.runs[:top]
		if len(run) == 0 {
			continue
		}
		n := q.fits(run)
		if n < len(run) {
			q.runs = append(q.runs, run[n:])
		}
		return run[:n:n]
	}
	return nil
}

// withoutFollowers answers for those of run that follow a refused event, and returns the others, in the same memory.
func (q *queue) withoutFollowers(run []int32) []int32 {
	return q.keep(run, func(i int32) bool {
		r, ok := q.refused[q.events[i].Key]
		if ok = ok && i > r.at; ok {
			q.answers[i] = r.behind
		}
		return !ok
	})
}

// keep returns those of run that stay, in the same memory.
func (q *queue) keep(run []int32, stays func(i int32) bool) []int32 {
	kept := run[:0]
	for _, i := range run {
		if stays(i) {
			kept = append(kept, i)
		}
	}
	return kept
}

// drop takes events out that need not be sent; their answer is nil.
func (q *queue) drop(known func(e *holdfast.Event) bool) {
	for n, run := range q.runs {
		q.runs[n] = q.keep(run, func(i int32) bool { return !known(&q.events[i]) })
	}
}

// fits is how many of run, at least one, make a batch.
func (q *queue) fits(run []int32) int {
	size := 0
	for n, i := range run {
		size += recordSize(&q.events[i])
		if size > q.limit && n > 0 {
			return n
		}
	}
	return len(run)
}

// sizeOf is how many bytes a batch has, at most.
func (q *queue) sizeOf(batch []int32) (size int) {
	for _, i := range batch {
		size += recordSize(&q.events[i])
	}
	return size
}

// settle takes in how the batch went: err nil when it was acknowledged, and records, by their place in the batch, when the broker
// named those to blame. A refused batch has written nothing.
func (q *queue) settle(batch []int32, err *relay.PublishError, records map[int]error) {
	switch {
	case err == nil:
	case err.Fault != relay.FaultRecord:
		q.abandon(batch, err)
	case len(batch) == 1:
		q.refuse(batch[0], err)
	case sizeRefused(err):
		q.limit = min(q.limit, q.sizeOf(batch)/2) // so that this batch, at least, is cut
		q.runs = append(q.runs, batch)
	case q.named(batch, records):
		q.refuseNamed(batch, err, records)
	default:
		half := len(batch) / 2
		q.runs = append(q.runs, batch[half:], batch[:half:half])
	}
}

// named says whether the broker named any record of the batch.
func (q *queue) named(batch []int32, records map[int]error) bool {
	for at := range records {
		if at >= 0 && at < len(batch) {
			return true
		}
	}
	return false
}

// refuseNamed refuses the records that the broker named. The others of the batch are sent next.
func (q *queue) refuseNamed(batch []int32, err *relay.PublishError, records map[int]error) {
	rest := make([]int32, 0, len(batch))
	for at, i := range batch {
		why, bad := records[at]
		if r, follows := q.refused[q.events[i].Key]; follows && i > r.at {
			q.answers[i] = r.behind
			continue
		}
		if !bad {
			rest = append(rest, i)
			continue
		}
		own := *err
		if why != nil {
			own.Err = why
		}
		q.refuse(i, &own)
	}
	q.runs = append(q.runs, rest)
}

// refuse answers for a bad event and remembers its key. An event without a key has no followers.
func (q *queue) refuse(i int32, err *relay.PublishError) {
	q.answers[i] = err
	if key := q.events[i].Key; key != "" {
		if q.refused == nil {
			q.refused = map[string]refusal{}
		}
		q.refused[key] = refusal{at: i, behind: q.behind(err)}
	}
}

// abandon ends the queue: the batch failed for no record's fault, and what is after it is not sent.
func (q *queue) abandon(batch []int32, err *relay.PublishError) {
	for _, i := range batch {
		q.answers[i] = err
	}
	behind := q.behind(err)
	for _, run := range q.runs {
		for _, i := range q.withoutFollowers(run) {
			q.answers[i] = behind
		}
	}
	q.runs = nil
}

// behind is the answer for an event that was not sent because of err.
func (q *queue) behind(err *relay.PublishError) *relay.PublishError {
	return &relay.PublishError{Topic: q.topic, Partition: q.partition, Fault: err.Fault, Class: err.Class, NotSent: true, Err: err}
}
