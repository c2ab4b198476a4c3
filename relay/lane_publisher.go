package relay

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
)

// LanePublisher is a Partitioner that publishes each lane of the log by a producer of that lane. So it can fence the lane's last owner at
// the broker, and find out what that one published and did not save: package contrib/franz does so with Kafka's transactions.
//
// OpenLane is called once for each lane that a relay takes, and must not touch the network: the lane's first call does. The relay then
// publishes the lane by the producer, and never calls Publish of the LanePublisher, nor PublishTogether if it is a Gatherer.
type LanePublisher interface {
	Partitioner
	OpenLane(c LaneClaim) LaneProducer
}

// LaneClaim is the right of a relay to a lane.
type LaneClaim struct {
	Schema string // that holds the log
	Lane   int
	Epoch  int64 // greater than that of every earlier claim of the lane
}

// LaneProducer publishes the events of one lane, as long as one claim lasts. Its methods may be called from many goroutines at once.
type LaneProducer interface {
	// Publish keeps the promises of Publisher.Publish. It may answer nil for an event that an earlier owner of the lane published. An
	// answer that wraps ErrLaneTaken ends the lane: the relay drops it, and claims it again if it is free.
	Publisher

	// Settled says which events the relay will not publish again. It must not block.
	Settled(s LaneSettled)

	// Close ends the producer when the lane leaves, also while calls of Publish are under way: these return. It must bound its time.
	Close()
}

// LaneSettled are events that were acknowledged, and that Postgres knows to be published: their lane's cursor is saved past them, or they
// have left the parked events.
type LaneSettled struct {
	Events []EventName

	// ReadAt, unless it is zero, says that all events of the lane that were committed before then are settled, and that none is
	// parked.
	ReadAt time.Time
}

// EventName is what an event is recognised by.
type EventName struct{ Source, ID, Topic string }

// NameOf returns the name of an event.
func NameOf(e *holdfast.Event) EventName { return EventName{e.Source, e.ID, e.Topic} }

// ErrLaneTaken is wrapped by the answers of a LaneProducer whose lane has another owner, or that cannot know any more what it published.
var ErrLaneTaken = errors.New("the lane's producer has lost its lane")

// open gives a claimed lane a producer of its own, if the publisher has them.
func (l *lane) open() {
	if p, ok := l.r.publisher.(LanePublisher); ok {
		l.producer = p.OpenLane(LaneClaim{Schema: l.r.c.Schema, Lane: l.number, Epoch: l.epoch})
		l.tracker.names = true
	}
}

// publisher is who publishes the lane.
func (l *lane) publisher() Publisher {
	if l.producer != nil {
		return l.producer
	}
	return l.r.publisher
}

// takenBy says why the lane ends by what was answered; nil if it does not.
func takenBy(errs []error) error {
	for _, err := range errs {
		if errors.Is(err, ErrLaneTaken) {
			return err
		}
	}
	return nil
}

// passed is what the cursor has moved past since it was last asked, for the producer if the lane has one of its own. The events are
// valid until the cursor moves again.
func (l *lane) passed() (past LaneSettled) {
	if l.producer == nil {
		return LaneSettled{}
	}
	past.Events, l.tracker.passed = l.tracker.passed, l.tracker.passed[:0]
	if len(l.queues.parked)+len(l.queues.whole) == 0 {
		past.ReadAt = l.tracker.allReadAt
	}
	return past
}

// settledParked says that a parked event was published and has left its table.
func (l *lane) settledParked(p *pending) {
	if l.producer != nil {
		l.producer.Settled(LaneSettled{Events: []EventName{NameOf(&p.event.Event)}})
	}
}
