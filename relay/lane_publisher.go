package relay

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// passedEvents is what a lane's producer learns: events that will not be published again, and, unless readAt is zero, that all events
// that were committed before then are settled, and none is parked.
type passedEvents struct {
	events []publish.EventName
	readAt time.Time
}

// open gives a claimed lane a producer of its own, if the publisher has them.
func (l *lane) open() {
	if p, ok := l.r.publisher.(publish.LanePublisher); ok {
		l.producer = p.OpenLane(l.r.c.Schema, l.number, l.epoch)
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
		if errors.Is(err, publish.ErrLaneTaken) {
			return err
		}
	}
	return nil
}

// passed is what the cursor has moved past since it was last asked, for the producer if the lane has one of its own. The events are
// valid until the cursor moves again.
func (l *lane) passed() (past passedEvents) {
	if l.producer == nil {
		return passedEvents{}
	}
	past.events, l.tracker.passed = l.tracker.passed, l.tracker.passed[:0]
	if len(l.queues.parked)+len(l.queues.whole) == 0 {
		past.readAt = l.tracker.allReadAt
	}
	return past
}

// settledParked says that a parked event was published and has left its table.
func (l *lane) settledParked(p *pending) {
	if l.producer != nil {
		l.producer.Settled([]publish.EventName{publish.EventNameOf(&p.event.Event)}, time.Time{})
	}
}
