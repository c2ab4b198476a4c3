package relay

import (
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file decides what becomes of every event that was read or retried. It knows no clock, context, database or
// broker: values in, values out. publish.go loads what it needs and applies what it says.

// queue names the events that keep an order among themselves: one topic and key. Events without a key are in no queue.
type queue struct{ topic, key string }

// ordered says whether the events of q wait for each other.
func (q queue) ordered() bool { return q.key != "" }

// answer is what a publisher said about one event: fault is empty when the broker has acknowledged it.
type answer struct {
	fault publish.Fault
	err   error
}

func (a answer) acknowledged() bool { return a.fault == "" && a.err == nil }

// disposition is what becomes of one event of a page.
type disposition uint8

const (
	undecided     disposition = iota
	published                 // acknowledged
	again                     // not acknowledged, and not the event's own fault: publish again, and hold what comes after it in its partition
	recordRefused             // the record itself was refused: the head of a new queue of its key, one attempt spent
	follows                   // an earlier event of its key is parked: queued after that
	topicHeld                 // its topic is missing or not permitted: parked with the topic, no attempt spent
	partitionDown             // its partition is held: unavailable, or so slow that it would hold the cursor; parked, no attempt spent
	first                     // the replay of a dead letter whose key has a queue: in front of it
	malformed                 // it cannot be published: it becomes a dead letter where it is
)

// String makes dispositions readable in tests and logs.
func (d disposition) String() string {
	return [...]string{"undecided", "published", "again", "record", "follows", "topic", "partition", "replay", "malformed"}[d]
}

// item is what decide looks at in an event.
type item struct {
	queue  queue
	replay bool // of a dead letter
}

// waiting says what comes before an event that is about to be sent.
type waiting struct {
	queue     func(queue) bool        // an earlier event of its queue is parked, or about to be, or a dead letter holds it
	topic     func(topic string) bool // it is held: missing or not permitted
	partition func(spot) bool         // it is held: unavailable or slow
	whole     func(topic string) bool // so many of its queues are parked that all its keys wait
}

// disposition says what becomes of an event before it is sent. Undecided means that it may be sent; the others are parked
// without being sent.
func (w waiting) disposition(it item, at spot) disposition {
	inQueue := follows
	if it.replay {
		inQueue = first
	}
	switch {
	case it.queue.ordered() && w.queue(it.queue):
		return inQueue
	case w.topic(it.queue.topic):
		return topicHeld
	case w.partition(at):
		return partitionDown
	case it.queue.ordered() && w.whole(it.queue.topic):
		return inQueue
	}
	return undecided
}

// decide turns the answers of one call into dispositions, in the order the events were sent.
//
// These rules hold for every answer. After an event that was not acknowledged, no later event of its key counts as refused
// or is parked as a head: it follows, or is published again with that event. All later events of a missing topic are
// parked with it. What was acknowledged stays acknowledged: it cannot be called back.
func decide(items []item, answers []answer) []disposition {
	dispositions := make([]disposition, len(items))
	earlier := map[queue]disposition{} // what the first unacknowledged event of a key became
	missing := map[string]bool{}
	for i, it := range items {
		if answers[i].acknowledged() {
			dispositions[i] = published
			continue
		}
		dispositions[i] = dispositionOf(it, answers[i], earlier, missing)
		if it.queue.ordered() {
			if _, known := earlier[it.queue]; !known {
				earlier[it.queue] = dispositions[i]
			}
		}
		if dispositions[i] == topicHeld {
			missing[it.queue.topic] = true
		}
	}
	return dispositions
}

func dispositionOf(it item, a answer, earlier map[queue]disposition, missing map[string]bool) disposition {
	if it.queue.ordered() {
		switch head, known := earlier[it.queue]; {
		case !known:
		case head == again:
			return again
		case head == topicHeld:
			return topicHeld
		default:
			return follows
		}
	}
	switch {
	case missing[it.queue.topic] || a.fault == publish.FaultTopic:
		return topicHeld
	case a.fault == publish.FaultRecord:
		return recordRefused
	default:
		return again
	}
}

// summary is what the answers of one call say together about its topic, its partition and the broker.
type summary struct {
	answers bool   // the partition answers: something was acknowledged, or refused for its own sake
	topic   error  // why the topic is missing or not permitted; nil if it is neither
	trouble answer // of the partition or, which is worse, of the broker; acknowledged for none
}

func summarize(answers []answer) (s summary) {
	for _, a := range answers {
		switch {
		case a.acknowledged() || a.fault == publish.FaultRecord:
			s.answers = true
		case a.fault == publish.FaultTopic:
			s.topic = a.err
		case s.trouble.acknowledged() || a.fault == publish.FaultBroker:
			s.trouble = a
		}
	}
	return s
}

// outcome is what becomes of a parked head after it was tried.
type outcome uint8

const (
	acknowledged outcome = iota // the row goes, the next of its queue is due
	retryLater                  // the record was refused: tried again after a delay
	dead                        // given up: a dead letter
	held                        // its topic or its partition takes nothing: it waits until that is over
	waits                       // the broker cannot be reached: nothing is written, it is sent again
	untouched                   // not tried, because an earlier one of its queue was not acknowledged
)

// retried is what the outcome of a parked event depends on.
type retried struct {
	queue    queue
	attempts int // spent before this try
}

// decideRetried decides what becomes of parked events that were published again, in the order they were sent. An attempt is
// spent only if the record itself was refused; permanent says that the refusal will never change. maxAttempts below 1 means
// no limit.
func decideRetried(rows []retried, answers []answer, permanent []bool, maxAttempts int) []outcome {
	outcomes := make([]outcome, len(rows))
	stuck := map[queue]bool{}
	for i, row := range rows {
		switch {
		case answers[i].acknowledged():
			outcomes[i] = acknowledged
			continue
		case row.queue.ordered() && stuck[row.queue]:
			outcomes[i] = untouched
		case answers[i].fault == publish.FaultRecord && (permanent[i] || spent(row.attempts+1, maxAttempts)):
			outcomes[i] = dead
		case answers[i].fault == publish.FaultRecord:
			outcomes[i] = retryLater
		case answers[i].fault == publish.FaultBroker:
			outcomes[i] = waits
		default:
			outcomes[i] = held
		}
		stuck[row.queue] = true
	}
	return outcomes
}

func spent(attempts, max int) bool { return max > 0 && attempts >= max }

// share is how many lanes one of so many relays should have at most. No relay hands a lane over at its share, and none
// claims one beyond it.
func share(lanes, relays int) int {
	if relays < 1 {
		relays = 1
	}
	return (lanes + relays - 1) / relays
}

// saveInterval is how long to wait between two saves of the cursors. A save leaves a dead version of each lane's row,
// and while some transaction keeps Postgres from pruning them, each save is slower than the one before. So saves may take
// a hundredth of the time at most.
func saveInterval(last time.Duration) time.Duration {
	return max(minSaveInterval, 100*last)
}

const minSaveInterval = 50 * time.Millisecond

// nextSegment says where the log continues once the current segment has grown to its size: in an empty segment, else in
// the smallest other one. It never waits for an empty one, because only a segment that is no longer written can be emptied.
func nextSegment(current int, bytes []int64, empty []bool, size int64) (int, bool) {
	if bytes[current] < size {
		return current, false
	}
	best := -1
	for n := range bytes {
		if n == current {
			continue
		}
		if empty[n] {
			return n, true
		}
		if best < 0 || bytes[n] < bytes[best] {
			best = n
		}
	}
	return best, true
}
