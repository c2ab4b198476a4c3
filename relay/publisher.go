package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/retry"
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
// that is not Named is taken for one of Kafka.
type Named interface {
	Publisher
	System() string
}

// systemOf is the messaging system of a publisher.
func systemOf(p Publisher) string {
	if named, ok := p.(Named); ok {
		return named.System()
	}
	return "kafka"
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

// Fault says what a failed publication is the fault of, and so what the relay does about it. Only FaultRecord spends an
// event's attempts. The others are no event's fault: the relay waits as long as they last.
type Fault string

const (
	// FaultRecord: the broker will never take this record as it is. Its key is parked and its attempts are counted.
	FaultRecord Fault = "record"

	// FaultTopic: the topic is missing, the relay may not write to it, or its settings refuse every event. The topic is
	// held and no attempts are spent.
	FaultTopic Fault = "topic"

	// FaultPartition: this partition cannot be written now: no leader, too few replicas, a full disk. It is held, no
	// attempts are spent.
	FaultPartition Fault = "partition"

	// FaultBroker: no broker can be reached, or authentication failed. The lane waits indefinitely; no attempts are spent.
	FaultBroker Fault = "broker"
)

// PublishError is a Publisher's answer for an event that is not acknowledged. It never holds a payload or a header's
// value.
//
// Not acknowledged does not mean not written: after a timeout or a lost connection the record may be in the log. Sending
// it again may write a duplicate, which the inbox drops by its id.
type PublishError struct {
	Topic     string
	Partition int // -1 when it is not known
	Fault     Fault

	// Class is Err's class for package retry. Empty means what retry.Classify says of Err.
	Class retry.Class

	// NotSent says that this event was never sent: an earlier one failed, and Err wraps that one's error.
	NotSent bool

	Err error
}

func (e *PublishError) Error() string {
	place := "topic " + e.Topic
	if e.Partition >= 0 {
		place = fmt.Sprintf("topic %s, partition %d", e.Topic, e.Partition)
	}
	if e.NotSent {
		return fmt.Sprintf("not sent to %s: %s", place, foreign.Text(e.Err))
	}
	return fmt.Sprintf("publish to %s: %s", place, foreign.Text(e.Err))
}

func (e *PublishError) Unwrap() error { return e.Err }

// PublishFault is what FaultOf asks for. Another Publisher's errors may have the same method.
func (e *PublishError) PublishFault() Fault { return e.Fault }

// RetryClass places the error in the classes of package retry. A refused record is a Validation. Everything else may
// pass, except missing rights, which somebody must grant.
func (e *PublishError) RetryClass() retry.Class {
	if e.Fault == FaultRecord {
		return retry.Validation
	}
	class := e.Class
	if class == "" {
		class = retry.Classify(e.Err)
	}
	if class == retry.Validation {
		return retry.Unavailable // the error reads like a record's, and the publisher knew better
	}
	return class
}

// FaultOf says what an error of a Publisher means for the relay: "" for nil. An error with a method PublishFault() Fault,
// as PublishError has, decides it itself. Of all others, only those that are retry.Permanent are the record's fault. About
// the rest we know only that the event is not acknowledged. Holding a lane loses nothing; giving up events because of a
// broker's trouble does.
func FaultOf(err error) Fault {
	if err == nil {
		return ""
	}
	var says interface{ PublishFault() Fault }
	if err = foreign.Error(err); errors.As(err, &says) {
		if fault, ok := foreign.Try(says.PublishFault); ok {
			return fault
		}
	}
	switch {
	case retry.IsPermanent(err):
		return FaultRecord
	}
	return FaultBroker
}
