package kafkago

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/internal/kafkafault"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// FaultOf says what an error of kafka-go means for a relay, for a publish.Publisher of your own on kafka-go: "" for nil. An
// error that says so itself is believed, as publish.FaultOf does. A kafka.Error is looked up in a table of all codes that a
// broker answers to a Produce or Metadata request. Of all others only those that are retry.Permanent are the record's own.
func FaultOf(err error) publish.Fault {
	return kafkafault.Said(err, meaningOf)
}

// publishError is the answer for an event that is not acknowledged because of err, which is of kafka-go.
func publishError(topic string, partition int, fault publish.Fault, err error) *publish.Error {
	return &publish.Error{
		Topic:     topic,
		Partition: partition,
		Fault:     fault,
		Class:     meaningOf(err).Class,
		Err:       err,
	}
}

// notSent is the answer for an event that never left, because of err.
func notSent(topic string, partition int, fault publish.Fault, err error) *publish.Error {
	e := publishError(topic, partition, fault, err)
	e.NotSent = true
	return e
}

// clientFaults are the answers of kafka-go's Transport that come from its cached layout of the cluster.
var clientFaults = []struct {
	err error
	kafkafault.Meaning
}{
	{protocol.ErrNoTopic, kafkafault.Meaning{Fault: publish.FaultTopic, Class: retry.Unavailable}},
	{protocol.ErrNoPartition, kafkafault.Meaning{Fault: publish.FaultPartition, Class: retry.Unavailable}},
	{protocol.ErrNoLeader, kafkafault.Meaning{Fault: publish.FaultPartition, Class: retry.Unavailable}},
}

// meaningOf looks err up: Kafka's codes first, then kafka-go's own answers, then what package retry knows.
func meaningOf(err error) kafkafault.Meaning {
	var code kafka.Error
	if errors.As(err, &code) {
		return kafkafault.Of(int(code))
	}
	for _, row := range clientFaults {
		if errors.Is(err, row.err) {
			return row.Meaning
		}
	}
	return kafkafault.Without(err)
}

// unanswered says whether err is of the network: whether the broker that was asked gave no answer at all. One that refuses
// to be connected to gave none: its certificate may have expired while the others' are good.
func unanswered(err error) bool {
	if as[*connectError](err) {
		return true
	}
	var code kafka.Error
	return !errors.As(err, &code) && kafkafault.Unanswered(err)
}

// sizeRefused says whether a batch was refused for its length, which a shorter batch fixes.
func sizeRefused(err error) bool {
	return errors.Is(err, kafka.MessageSizeTooLarge) || errors.Is(err, kafka.RecordListTooLarge)
}

// recordError is the error of one record that the broker named, why, in a batch refused with err.
func recordError(err, why error) error {
	var code kafka.Error
	if !errors.As(err, &code) || why == nil || why.Error() == "" {
		return err
	}
	return fmt.Errorf("%w: %w", code, why) // instead of err, whose text tells the batch's story
}
