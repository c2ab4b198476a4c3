package publish

import (
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/retry"
)

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

// Error is a Publisher's answer for an event that is not acknowledged. It never holds a payload or a header's
// value.
//
// Not acknowledged does not mean not written: after a timeout or a lost connection the record may be in the log. Sending
// it again may write a duplicate, which the inbox drops by its id.
type Error struct {
	Topic     string
	Partition int // -1 when it is not known
	Fault     Fault

	// Class is Err's class for package retry. Empty means what retry.Classify says of Err.
	Class retry.Class

	// NotSent says that this event was never sent: an earlier one failed, and Err wraps that one's error.
	NotSent bool

	Err error
}

func (e *Error) Error() string {
	place := "topic " + e.Topic
	if e.Partition >= 0 {
		place = fmt.Sprintf("topic %s, partition %d", e.Topic, e.Partition)
	}
	if e.NotSent {
		return fmt.Sprintf("not sent to %s: %s", place, foreign.Text(e.Err))
	}
	return fmt.Sprintf("publish to %s: %s", place, foreign.Text(e.Err))
}

func (e *Error) Unwrap() error { return e.Err }

// PublishFault is what FaultOf asks for. Another Publisher's errors may have the same method.
func (e *Error) PublishFault() Fault { return e.Fault }

// RetryClass places the error in the classes of package retry. A refused record is a Validation. Everything else may
// pass, except missing rights, which somebody must grant.
func (e *Error) RetryClass() retry.Class {
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
// as Error has, decides it itself. Of all others, only those that are retry.Permanent are the record's fault. About
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
	if retry.IsPermanent(err) {
		return FaultRecord
	}
	return FaultBroker
}
