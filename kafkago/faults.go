package kafkago

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// FaultOf says what an error of kafka-go means for a relay, for a relay.Publisher of your own on kafka-go: "" for nil. An
// error that says so itself is believed, as relay.FaultOf does. A kafka.Error is looked up in a table of all codes that a
// broker answers to a Produce or Metadata request. Of all others only those that are retry.Permanent are the record's own.
func FaultOf(err error) relay.Fault {
	if err == nil {
		return ""
	}
	var says interface{ PublishFault() relay.Fault }
	if errors.As(err, &says) {
		return says.PublishFault()
	}
	fault, _ := faultOf(err)
	return fault
}

// publishError is the answer for an event that is not acknowledged because of err, which is of kafka-go.
func publishError(topic string, partition int, fault relay.Fault, err error) *relay.PublishError {
	_, class := faultOf(err)
	return &relay.PublishError{Topic: topic, Partition: partition, Fault: fault, Class: class, Err: err}
}

// notSent is the answer for an event that never left, because of err.
func notSent(topic string, partition int, fault relay.Fault, err error) *relay.PublishError {
	e := publishError(topic, partition, fault, err)
	e.NotSent = true
	return e
}

// kafkaFault is one row of kafkaFaults.
type kafkaFault struct {
	fault relay.Fault
	class retry.Class
}

// kafkaFaults is the one table from Kafka's error codes to what the relay does. A code that is not here cannot be the
// answer to a Produce or Metadata request of today's Kafka (it belongs to groups, transactions, the controllers), or is
// newer than this build: it is unknownFault. A new case is a row here and a row in kafka_errors_test.go.
var kafkaFaults = map[kafka.Error]kafkaFault{
	// The record. Each of these refuses the whole batch and writes nothing of it, so the batch is bisected.
	kafka.MessageSizeTooLarge: {relay.FaultRecord, retry.Validation}, // longer than the topic's max.message.bytes
	kafka.RecordListTooLarge:  {relay.FaultRecord, retry.Validation}, // longer than a segment
	kafka.InvalidRecord:       {relay.FaultRecord, retry.Validation}, // no key on a compacted topic, a broker's own validation
	// A checksum that does not fit: damage on the way, which sending again fixes, or, on old brokers, a missing key on a
	// compacted topic, which nothing fixes. The attempts that a record's fault spends tell the one from the other.
	kafka.InvalidMessage: {relay.FaultRecord, retry.Validation},

	// The topic.
	kafka.UnknownTopicOrPartition:  {relay.FaultTopic, retry.Unavailable},
	kafka.UnknownTopicID:           {relay.FaultTopic, retry.Unavailable},
	kafka.InconsistentTopicID:      {relay.FaultTopic, retry.Unavailable},
	kafka.InvalidTopic:             {relay.FaultTopic, retry.Unavailable},
	kafka.TopicAuthorizationFailed: {relay.FaultTopic, retry.Auth},
	// Records are stamped with this machine's clock, so a refused timestamp is the clock's trouble or the topic's
	// settings', for every record alike: taken for a record's fault it would turn a wrong clock into dead letters.
	kafka.InvalidTimestamp:            {relay.FaultTopic, retry.Unavailable},
	kafka.UnsupportedForMessageFormat: {relay.FaultTopic, retry.Unavailable}, // the topic keeps a format without headers
	kafka.UnsupportedCompressionType:  {relay.FaultTopic, retry.Unavailable},
	kafka.PolicyViolation:             {relay.FaultTopic, retry.Unavailable},
	kafka.InvalidConfiguration:        {relay.FaultTopic, retry.Unavailable},

	// The partition. After RequestTimedOut, NotEnoughReplicasAfterAppend and Unknown the records may be written.
	kafka.Unknown:                      {relay.FaultPartition, retry.Transient},
	kafka.LeaderNotAvailable:           {relay.FaultPartition, retry.Unavailable},
	kafka.NotLeaderForPartition:        {relay.FaultPartition, retry.Unavailable},
	kafka.RequestTimedOut:              {relay.FaultPartition, retry.Timeout},
	kafka.BrokerNotAvailable:           {relay.FaultPartition, retry.Unavailable}, // kafka-go's answer for a leader it has no address of
	kafka.ReplicaNotAvailable:          {relay.FaultPartition, retry.Unavailable},
	kafka.NotEnoughReplicas:            {relay.FaultPartition, retry.Unavailable},
	kafka.NotEnoughReplicasAfterAppend: {relay.FaultPartition, retry.Unavailable},
	kafka.KafkaStorageError:            {relay.FaultPartition, retry.Unavailable},
	kafka.LogDirNotFound:               {relay.FaultPartition, retry.Unavailable},
	kafka.ReassignmentInProgress:       {relay.FaultPartition, retry.Unavailable},
	kafka.FencedLeaderEpoch:            {relay.FaultPartition, retry.Unavailable},
	kafka.UnknownLeaderEpoch:           {relay.FaultPartition, retry.Unavailable},
	kafka.PreferredLeaderNotAvailable:  {relay.FaultPartition, retry.Unavailable},
	kafka.EligibleLeadersNotAvailable:  {relay.FaultPartition, retry.Unavailable},
	kafka.OffsetNotAvailable:           {relay.FaultPartition, retry.Unavailable},

	// The broker, or our way in.
	kafka.NetworkException:                   {relay.FaultBroker, retry.Unavailable},
	kafka.StaleBrokerEpoch:                   {relay.FaultBroker, retry.Unavailable},
	kafka.ListenerNotFound:                   {relay.FaultBroker, retry.Unavailable},
	kafka.ThrottlingQuotaExceeded:            {relay.FaultBroker, retry.RateLimit},
	kafka.ClusterAuthorizationFailed:         {relay.FaultBroker, retry.Auth},
	kafka.BrokerAuthorizationFailed:          {relay.FaultBroker, retry.Auth},
	kafka.TransactionalIDAuthorizationFailed: {relay.FaultBroker, retry.Auth},
	kafka.UnsupportedSASLMechanism:           {relay.FaultBroker, retry.Auth},
	kafka.IllegalSASLState:                   {relay.FaultBroker, retry.Auth},
	kafka.SASLAuthenticationFailed:           {relay.FaultBroker, retry.Auth},
	kafka.SecurityDisabled:                   {relay.FaultBroker, retry.Auth},
	kafka.UnacceptableCredential:             {relay.FaultBroker, retry.Auth},
	kafka.PrincipalDeserializationFailure:    {relay.FaultBroker, retry.Auth},
	kafka.InvalidPrincipalType:               {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenAuthDisabled:        {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenNotFound:            {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenOwnerMismatch:       {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenRequestNotAllowed:   {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenAuthorizationFailed: {relay.FaultBroker, retry.Auth},
	kafka.DelegationTokenExpired:             {relay.FaultBroker, retry.Auth},
	kafka.InconsistentClusterID:              {relay.FaultBroker, retry.Unavailable},
	// What we ask for is fixed, so these say that the other end is no Kafka we know.
	kafka.InvalidRequiredAcks: {relay.FaultBroker, retry.Unavailable},
	kafka.UnsupportedVersion:  {relay.FaultBroker, retry.Unavailable},
}

// unknownFault is what a code outside the table means: hold the partition and say so, rather than lose.
var unknownFault = kafkaFault{relay.FaultPartition, retry.Transient}

// clientFaults are the answers of kafka-go's Transport that come from its cached layout of the cluster.
var clientFaults = []struct {
	err error
	kafkaFault
}{
	{protocol.ErrNoTopic, kafkaFault{relay.FaultTopic, retry.Unavailable}},
	{protocol.ErrNoPartition, kafkaFault{relay.FaultPartition, retry.Unavailable}},
	{protocol.ErrNoLeader, kafkaFault{relay.FaultPartition, retry.Unavailable}},
}

// faultOf looks err up: Kafka's codes first, then kafka-go's own answers, then what package retry knows.
func faultOf(err error) (relay.Fault, retry.Class) {
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
		return relay.FaultRecord, retry.Validation
	}
	return relay.FaultBroker, retry.Classify(err)
}

// unanswered says whether err is of the network: whether the broker that was asked gave no answer at all. One that refuses
// to be connected to gave none: its certificate may have expired while the others' are good.
func unanswered(err error) bool {
	if as[*connectError](err) {
		return true
	}
	var code kafka.Error
	if errors.As(err, &code) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		retry.Classify(err) == retry.Unavailable
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
