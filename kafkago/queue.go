package kafkago

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
)

// nowhere is the place of an event that cannot be sent.
const nowhere = -1

// place returns every event's partition, nowhere for topics that have an error in topics. A partition that does not
// exist is the Partitioner's mistake and ends its topic for this call, so that no later event of a key overtakes.
func place(events []holdfast.Event, topics map[string]topicAnswer, partitioner Partitioner) []int32 {
	places := make([]int32, len(events))
	var topic string
	var answer topicAnswer
	for i := range events {
		e := &events[i]
		if e.Topic != topic || i == 0 {
			topic, answer = e.Topic, topics[e.Topic]
		}
		if answer.err != nil {
			places[i] = nowhere
			continue
		}
		p := partitioner(*e, answer.info.partitions)
		if p < 0 || p >= answer.info.partitions {
			answer.err = notSent(topic, -1, relay.FaultTopic,
				fmt.Errorf("PublisherConfig.Partitioner answered %d of %d partitions: it must answer from 0 to one less", p, answer.info.partitions))
			topics[topic] = answer
			p = nowhere
		}
		places[i] = int32(p)
	}
	return places
}

// divide makes a queue of every partition that has events, in the order of the events, and answers for those of
// topics that have an error.
func divide(events []holdfast.Event, answers []error, topics map[string]topicAnswer, places []int32) []partitionQueue {
	// 1. Give every topic's partitions a range of slots.
	type slots struct {
		from int
		topicAnswer
	}
	ranges := make(map[string]slots, len(topics))
	total := 0
	for topic, answer := range topics {
		ranges[topic] = slots{from: total, topicAnswer: answer}
		if answer.err == nil {
			total += answer.info.partitions
		}
	}

	// 2. Count each slot's events, and make the places into slots.
	counts := make([]int32, total)
	sent := 0
	eachTopic(events, func(topic string) slots { return ranges[topic] }, func(i int, s slots) {
		if s.err != nil {
			answers[i] = s.err
			places[i] = nowhere
			return
		}
		places[i] += int32(s.from)
		counts[places[i]]++
		sent++
	})

	// 3. Cut one array into the slots' parts.
	index := make([]int32, sent)
	used := 0
	ends := make([]int32, total)
	for slot, from := 0, int32(0); slot < total; slot++ {
		ends[slot] = from
		from += counts[slot]
		if counts[slot] > 0 {
			used++
		}
	}

	// 4. Fill them in the order of the events.
	for i, slot := range places {
		if slot != nowhere {
			index[ends[slot]] = int32(i)
			ends[slot]++
		}
	}

	queues := make([]partitionQueue, 0, used)
	for slot, count := range counts {
		if count == 0 {
			continue
		}
		run := index[ends[slot]-count : ends[slot] : ends[slot]]
		topic := events[run[0]].Topic
		r := ranges[topic]
		queues = append(queues, partitionQueue{
			topic: topic, partition: slot - r.from, info: r.info,
			events: events, answers: answers, runs: [][]int32{run},
		})
	}
	return queues
}

// eachTopic calls do for every event with what of gives for its topic, asking once for a run of events of one topic.
func eachTopic[T any](events []holdfast.Event, of func(topic string) T, do func(i int, t T)) {
	var t T
	for i := range events {
		if i == 0 || events[i].Topic != events[i-1].Topic {
			t = of(events[i].Topic)
		}
		do(i, t)
	}
}

// partitionQueue decides what of one partition is sent next, and writes the answers. It knows no broker: next gives a
// batch, the caller sends it, settle receives how it went.
//
//	        ┌────────────── acknowledged ─────────────┐
//	        ▼                                         │
//	runs ─ next ─► batch in flight ─ refused, records named ─► those are bad, the rest back on top
//	        ▲                      ├ refused for its length ──► all back on top, limit halved
//	        │                      ├ refused, two or more ────► halves back on top, the first first
//	        │                      ├ refused, one ────────────► it is bad: later events of its key never leave
//	        └──────────────────────┴ any other failure ───────► everything left answers, nothing more leaves
//
// Invariant: runs, read from the last to the first, holds ascending indexes without overlap, all above those of any
// batch that was acknowledged. So a partition's events leave in order whatever is refused.
type partitionQueue struct {
	topic     string
	partition int
	info      *topicInfo
	events    []holdfast.Event
	answers   []error // of the whole call; each index belongs to one queue

	runs  [][]int32
	limit int // bytes of a batch of two or more

	// refused holds, by key, the first event that was refused. Later ones of the key are its followers: they are
	// taken out of every later part before that is sent, so that none overtakes it.
	refused map[string]refusal
}

// refusal is a bad event: where it stands, and the answer for those behind it.
type refusal struct {
	at     int32
	behind *relay.PublishError
}

// next takes the next batch off the queue; nil when nothing is left. Followers of a refused event leave here, before
// the batch is cut. A batch keeps to limit, or is a single event.
func (q *partitionQueue) next() []int32 {
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
func (q *partitionQueue) withoutFollowers(run []int32) []int32 {
	if len(q.refused) == 0 {
		return run
	}
	kept := run[:0]
	for _, i := range run {
		if behind := q.follows(i); behind != nil {
			q.answers[i] = behind
			continue
		}
		kept = append(kept, i)
	}
	return kept
}

// follows returns the answer for event i when it is behind a refused event of its key, else nil.
func (q *partitionQueue) follows(i int32) *relay.PublishError {
	if r, ok := q.refused[q.events[i].Key]; ok && i > r.at {
		return r.behind
	}
	return nil
}

// fits is how many of run, at least one, make a batch.
func (q *partitionQueue) fits(run []int32) int {
	size := 0
	for n, i := range run {
		size += recordSize(&q.events[i])
		if size > q.limit && n > 0 {
			return n
		}
	}
	return len(run)
}

// settle takes in how the batch went: err nil when it was acknowledged, and records, by their place in the batch, when
// the broker named those to blame. A refused batch has written nothing.
func (q *partitionQueue) settle(batch []int32, err *relay.PublishError, records map[int]error) {
	switch {
	case err == nil:
	case err.Fault != relay.FaultRecord:
		q.abandon(batch, err)
	case len(batch) == 1:
		q.refuse(batch[0], err)
	case sizeRefused(err):
		size := 0
		for _, i := range batch {
			size += recordSize(&q.events[i])
		}
		q.limit = min(q.limit, size/2) // so that this batch, at least, is cut
		q.runs = append(q.runs, batch)
	default:
		if rest, named := q.refuseNamed(batch, err, records); named {
			q.runs = append(q.runs, rest)
			return
		}
		half := len(batch) / 2
		q.runs = append(q.runs, batch[half:], batch[:half:half])
	}
}

// refuseNamed refuses the records that the broker named and returns the others of the batch, in the same memory. named
// is false when there is none, and the batch must be divided to find out.
func (q *partitionQueue) refuseNamed(batch []int32, err *relay.PublishError, records map[int]error) (rest []int32, named bool) {
	for place := range records {
		if place >= 0 && place < len(batch) {
			named = true
		}
	}
	if !named {
		return batch, false
	}
	rest = batch[:0]
	for place, i := range batch {
		why, bad := records[place]
		switch behind := q.follows(i); {
		case behind != nil:
			q.answers[i] = behind
		case bad:
			own := *err
			own.Err = recordError(err.Err, why)
			q.refuse(i, &own)
		default:
			rest = append(rest, i)
		}
	}
	return rest, true
}

// refuse answers for a bad event and remembers its key. An event without a key has no followers.
func (q *partitionQueue) refuse(i int32, err *relay.PublishError) {
	q.answers[i] = err
	key := q.events[i].Key
	if key == "" {
		return
	}
	if q.refused == nil {
		q.refused = make(map[string]refusal)
	}
	q.refused[key] = refusal{at: i, behind: q.behind(err)}
}

// abandon ends the queue: the batch failed for no record's fault, and what is behind it stays behind it.
func (q *partitionQueue) abandon(batch []int32, err *relay.PublishError) {
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
func (q *partitionQueue) behind(err *relay.PublishError) *relay.PublishError {
	return &relay.PublishError{Topic: q.topic, Partition: q.partition, Fault: err.Fault, NotSent: true, Err: err}
}
