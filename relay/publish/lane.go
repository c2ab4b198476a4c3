package publish

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
)

// LanePublisher is a Partitioner that publishes each lane of the log by a producer of that lane. So it can fence the lane's last owner at
// the broker, and find out what that one published and did not save: package contrib/franz does so with Kafka's transactions.
//
// OpenLane is called once for each lane of the log in schema that a relay takes, and must not touch the network: the lane's first call
// does. epoch is greater than that of every earlier claim of the lane. The relay then publishes the lane by the producer, and never
// calls Publish of the LanePublisher, nor PublishTogether if it is a Gatherer.
type LanePublisher interface {
	Partitioner
	OpenLane(schema string, lane int, epoch int64) LaneProducer
}

// LaneProducer publishes the events of one lane, as long as one claim lasts. Its methods may be called from many goroutines at once.
type LaneProducer interface {
	// Publish keeps the promises of Publisher.Publish. It may answer nil for an event that an earlier owner of the lane published. An
	// answer that wraps ErrLaneTaken ends the lane: the relay drops it, and claims it again if it is free.
	Publisher

	// Settled says which events the relay will not publish again: they were acknowledged, and Postgres knows it, because their lane's
	// cursor is saved past them, or because they have left the parked events. readAt, unless it is zero, says that all events of the
	// lane that were committed before then are settled, and that none is parked. It must not block.
	Settled(events []EventName, readAt time.Time)

	// Close ends the producer when the lane leaves, also while calls of Publish are under way: these return. It must bound its time.
	Close()
}

// EventName is what an event is recognised by.
type EventName struct{ Source, ID, Topic string }

// EventNameOf returns the name of an event.
func EventNameOf(e *holdfast.Event) EventName { return EventName{e.Source, e.ID, e.Topic} }

// ErrLaneTaken is wrapped by the answers of a LaneProducer whose lane has another owner, or that cannot know any more what it published.
var ErrLaneTaken = errors.New("the lane's producer has lost its lane")
