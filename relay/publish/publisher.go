// Package publish is what a broker is to a relay: implement Publisher to publish to another one than those that kafkago, contrib/franz
// and contrib/nats know, and Wrap to put middleware around one. Package publishertest checks an implementation, and has a small
// one in memory as an example.
//
// A Publisher sends events and answers for each. What else it can do it says by the interfaces beside it: Partitioner, Gatherer,
// Pinger, Named and LanePublisher. FaultOf says what an answer means for the event, its topic or its lane, and RecordOf which record
// an event is.
//
// Who only runs a relay needs nothing of this but Wrap.
package publish

import (
	"context"

	"github.com/holdfast-go/holdfast"
)

// Publisher sends events to a broker, in the order given, and answers once for each: nil means that the event is
// acknowledged and will survive. After a refusal, later events of the same topic and key in the call are not sent and
// answer with the same error, wrapped. FaultOf says what an error means for the event, its topic or its lane.
//
// Publish is called from many goroutines at once: for each lane of the log one for each partition that has events, or for
// each topic if the publisher is no Partitioner. It must bound its own time, because a relay that stops
// lets the call in progress finish. It must not change the events, nor keep them after it has returned.
//
// Package kafkago has a Publisher for Kafka. Package publishertest checks any other, and has a small one in memory as an
// example.
type Publisher interface {
	Publish(ctx context.Context, events []holdfast.Event) []error
}

// Partitioner is a Publisher that says where an event goes. Then the relay publishes the partitions of a topic apart from
// each other: one that answers late, or not at all, delays its own events only. With any other Publisher it delays those of
// its topic.
//
// Partition returns the partition that Publish would send e to, from 0, and how many partitions its topic has; 0 and 0
// while that is not known, as before the first Publish. It is called for every event, from many goroutines, and must not
// touch the network. All events of a topic and key must go to the same partition as long as the number of partitions is
// the same.
type Partitioner interface {
	Publisher
	Partition(e holdfast.Event) (partition, partitions int)
}

// Named is a Publisher that says into which messaging system it publishes, by the name that OpenTelemetry's semantic conventions for
// messaging have for it (messaging.system), as "nats". Traces and metrics then say so. The name must not change. A Publisher
// that is not Named, or says "", is taken for one of Kafka.
type Named interface {
	Publisher
	System() string
}

// Pinger is a Publisher that can say whether a broker answers. A relay asks when it starts, until one does: a wrong address, or a
// password that is refused, is in the log then before the first event waits for it. Package kafkago's Publisher is one.
type Pinger interface {
	Publisher

	// Ping returns nil once any broker has answered, and else why none does. It must end with ctx.
	Ping(ctx context.Context) error
}

// Gatherer is a Partitioner that sends what many partitions have in few requests. A relay uses that while a lane has events for
// more than 32 of them: an event or two each, for which requests of their own cost far more than the events do. A partition whose
// last call failed, or took longer than a quarter of a second, is published alone.
//
// PublishTogether is Publish for several batches. Each has the events of one partition, as Partition says, or of one topic while
// its partitions are not known; no two have the same. It calls answered once for each batch, by its index, as soon as it knows
// what became of it, with an answer for each of its events; from any goroutine, and from several at once. When it returns, all
// have been answered. A batch that fails takes nothing from the others: a request in which one partition does not answer should end
// within half a second, so that the others are tried without it. All that Publish promises holds for each batch.
type Gatherer interface {
	Partitioner
	PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error))
}
