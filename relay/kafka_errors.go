package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/retry"
)

// Fault says whose trouble a failed publication is, and with that what the relay does about it. Only FaultRecord
// spends an event's attempts; the others are no event's fault, and are waited for as long as they last.
type Fault string

const (
	// FaultRecord: the broker will never take this record as it is. Its key is parked and its attempts are counted.
	FaultRecord Fault = "record"

	// FaultTopic: the topic is missing, or we may not write to it, or its settings refuse everything we send. The topic is
	// held, no attempts are spent, somebody is told.
	FaultTopic Fault = "topic"

	// FaultPartition: this partition cannot be written now: no leader, too few replicas, a full disk. It is held, no
	// attempts are spent.
	FaultPartition Fault = "partition"

	// FaultBroker: nothing can be reached, or we are not let in. The lane is held, no attempts are spent, for ever.
	FaultBroker Fault = "broker"
)

// PublishError is Kafka's answer for an event that is not acknowledged. It never holds a payload or a header's value.
//
// Not acknowledged does not mean not written: after a timeout or a connection that was cut the record may be in the
// log. Whoever sends it again accepts a duplicate, which the inbox drops by its id.
type PublishError struct {
	Topic     string
	Partition int // -1 when it is not known
	Fault     Fault

	// NotSent says that this event never left: another one before it failed, and Err wraps that one's error.
	NotSent bool

	Err error
}

func (e *PublishError) Error() string {
	place := "topic " + e.Topic
	if e.Partition >= 0 {
		place = fmt.Sprintf("topic %s, partition %d", e.Topic, e.Partition)
	}
	if e.NotSent {
		return fmt.Sprintf("not sent to %s: %v", place, e.Err)
	}
	return fmt.Sprintf("publish to %s: %v", place, e.Err)
}

func (e *PublishError) Unwrap() error { return e.Err }

// PublishFault is what FaultOf asks for. A Publisher of another make gives its errors the same method.
func (e *PublishError) PublishFault() Fault { return e.Fault }

// RetryClass places the error in the classes of package retry. A refused record is a Validation; everything else may
// pass, except for rights, which somebody must grant.
func (e *PublishError) RetryClass() retry.Class {
	_, class := faultOf(e.Err)
	switch {
	case e.Fault == FaultRecord:
		return retry.Validation
	case class == retry.Validation:
		return retry.Unavailable // the error reads like a record's, and the publisher knew better
	}
	return class
}

// FaultOf says what an error of a Publisher means for the relay: "" for nil. An error that says so itself, by a method
// PublishFault() Fault, is believed; one that wraps a kafka.Error is looked up in kafkaFaults. Of all others only
// those that are retry.Permanent are the record's own: about the rest nothing is known but that the event is not
// acknowledged, and holding a lane loudly loses nothing, while giving up events for a broker's trouble does.
func FaultOf(err error) Fault {
	if err == nil {
		return ""
	}
	var says interface{ PublishFault() Fault }
	if errors.As(err, &says) {
		return says.PublishFault()
	}
	fault, _ := faultOf(err)
	return fault
}

// kafkaFault is one row of kafkaFaults.
type kafkaFault struct {
	fault Fault
	class retry.Class
}

// kafkaFaults is the one table from Kafka's error codes to what the relay does. A code that is not here cannot be the
// answer to a Produce or Metadata request of today's Kafka (it belongs to groups, transactions, the controllers), or is
// newer than this build: it is unknownFault. A new case is a row here and a row in kafka_errors_test.go.
var kafkaFaults = map[kafka.Error]kafkaFault{
	// The record. Each of these refuses the whole batch and writes nothing of it, so the batch is bisected.
	kafka.MessageSizeTooLarge: {FaultRecord, retry.Validation}, // longer than the topic's max.message.bytes
	kafka.RecordListTooLarge:  {FaultRecord, retry.Validation}, // longer than a segment
	kafka.InvalidRecord:       {FaultRecord, retry.Validation}, // no key on a compacted topic, a broker's own validation
	// A checksum that does not fit: damage on the way, which sending again mends, or, on old brokers, a missing key on a
	// compacted topic, which nothing mends. The attempts that a record's fault spends tell the one from the other.
	kafka.InvalidMessage: {FaultRecord, retry.Validation},

	// The topic.
	kafka.UnknownTopicOrPartition:  {FaultTopic, retry.Unavailable},
	kafka.UnknownTopicID:           {FaultTopic, retry.Unavailable},
	kafka.InconsistentTopicID:      {FaultTopic, retry.Unavailable},
	kafka.InvalidTopic:             {FaultTopic, retry.Unavailable},
	kafka.TopicAuthorizationFailed: {FaultTopic, retry.Auth},
	// Records are stamped with this machine's clock, so a refused timestamp is the clock's trouble or the topic's
	// settings', for every record alike: taken for a record's fault it would turn a wrong clock into dead letters.
	kafka.InvalidTimestamp:            {FaultTopic, retry.Unavailable},
	kafka.UnsupportedForMessageFormat: {FaultTopic, retry.Unavailable}, // the topic keeps a format without headers
	kafka.UnsupportedCompressionType:  {FaultTopic, retry.Unavailable},
	kafka.PolicyViolation:             {FaultTopic, retry.Unavailable},
	kafka.InvalidConfiguration:        {FaultTopic, retry.Unavailable},

	// The partition. After RequestTimedOut, NotEnoughReplicasAfterAppend and Unknown the records may be written.
	kafka.Unknown:                      {FaultPartition, retry.Transient},
	kafka.LeaderNotAvailable:           {FaultPartition, retry.Unavailable},
	kafka.NotLeaderForPartition:        {FaultPartition, retry.Unavailable},
	kafka.RequestTimedOut:              {FaultPartition, retry.Timeout},
	kafka.BrokerNotAvailable:           {FaultPartition, retry.Unavailable}, // kafka-go's answer for a leader it has no address of
	kafka.ReplicaNotAvailable:          {FaultPartition, retry.Unavailable},
	kafka.NotEnoughReplicas:            {FaultPartition, retry.Unavailable},
	kafka.NotEnoughReplicasAfterAppend: {FaultPartition, retry.Unavailable},
	kafka.KafkaStorageError:            {FaultPartition, retry.Unavailable},
	kafka.LogDirNotFound:               {FaultPartition, retry.Unavailable},
	kafka.ReassignmentInProgress:       {FaultPartition, retry.Unavailable},
	kafka.FencedLeaderEpoch:            {FaultPartition, retry.Unavailable},
	kafka.UnknownLeaderEpoch:           {FaultPartition, retry.Unavailable},
	kafka.PreferredLeaderNotAvailable:  {FaultPartition, retry.Unavailable},
	kafka.EligibleLeadersNotAvailable:  {FaultPartition, retry.Unavailable},
	kafka.OffsetNotAvailable:           {FaultPartition, retry.Unavailable},

	// The broker, or our way in.
	kafka.NetworkException:                   {FaultBroker, retry.Unavailable},
	kafka.StaleBrokerEpoch:                   {FaultBroker, retry.Unavailable},
	kafka.ListenerNotFound:                   {FaultBroker, retry.Unavailable},
	kafka.ThrottlingQuotaExceeded:            {FaultBroker, retry.RateLimit},
	kafka.ClusterAuthorizationFailed:         {FaultBroker, retry.Auth},
	kafka.BrokerAuthorizationFailed:          {FaultBroker, retry.Auth},
	kafka.TransactionalIDAuthorizationFailed: {FaultBroker, retry.Auth},
	kafka.UnsupportedSASLMechanism:           {FaultBroker, retry.Auth},
	kafka.IllegalSASLState:                   {FaultBroker, retry.Auth},
	kafka.SASLAuthenticationFailed:           {FaultBroker, retry.Auth},
	kafka.SecurityDisabled:                   {FaultBroker, retry.Auth},
	kafka.UnacceptableCredential:             {FaultBroker, retry.Auth},
	kafka.PrincipalDeserializationFailure:    {FaultBroker, retry.Auth},
	kafka.InvalidPrincipalType:               {FaultBroker, retry.Auth},
	kafka.DelegationTokenAuthDisabled:        {FaultBroker, retry.Auth},
	kafka.DelegationTokenNotFound:            {FaultBroker, retry.Auth},
	kafka.DelegationTokenOwnerMismatch:       {FaultBroker, retry.Auth},
	kafka.DelegationTokenRequestNotAllowed:   {FaultBroker, retry.Auth},
	kafka.DelegationTokenAuthorizationFailed: {FaultBroker, retry.Auth},
	kafka.DelegationTokenExpired:             {FaultBroker, retry.Auth},
	kafka.InconsistentClusterID:              {FaultBroker, retry.Unavailable},
	// What we ask for is fixed, so these say that the other end is no Kafka we know.
	kafka.InvalidRequiredAcks: {FaultBroker, retry.Unavailable},
	kafka.UnsupportedVersion:  {FaultBroker, retry.Unavailable},
}

// unknownFault is what a code outside the table means: hold the partition and say so, rather than lose.
var unknownFault = kafkaFault{FaultPartition, retry.Transient}

// clientFaults are the answers of kafka-go's Transport that come from its cached layout of the cluster.
var clientFaults = []struct {
	err error
	kafkaFault
}{
	{protocol.ErrNoTopic, kafkaFault{FaultTopic, retry.Unavailable}},
	{protocol.ErrNoPartition, kafkaFault{FaultPartition, retry.Unavailable}},
	{protocol.ErrNoLeader, kafkaFault{FaultPartition, retry.Unavailable}},
}

// faultOf looks err up: Kafka's codes first, then kafka-go's own answers, then what package retry knows.
func faultOf(err error) (Fault, retry.Class) {
	var code kafka.Error
	if errors.As(err, &code) {
		row, ok := kafkaFaults[code]
		if !ok {
			row = unknownFault
		}
		return row.fault, row.class
	}
	for _, row := range clientFaults {
		if errors.Is(err, row.err) {
			return row.fault, row.class
		}
	}
	if retry.IsPermanent(err) {
		return FaultRecord, retry.Validation
	}
	return FaultBroker, retry.Classify(err)
}

// unanswered says whether err is of the network: whether the broker that was asked gave no answer at all.
func unanswered(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		retry.Classify(err) == retry.Unavailable
}

// sizeRefused says whether a batch was refused for its length, which a shorter batch mends.
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
