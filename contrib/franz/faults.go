package franz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
)

// FaultOf says what an error of franz-go means for a relay, for a relay.Publisher of your own on franz-go: "" for nil. An error that
// says so itself is believed, as relay.FaultOf does. A *kerr.Error is looked up in a table of all codes that a broker answers to a
// Produce or Metadata request. Of all others only those that are retry.Permanent are the record's own.
func FaultOf(err error) relay.Fault {
	if err == nil {
		return ""
	}
	var says interface{ PublishFault() relay.Fault }
	if errors.As(err, &says) {
		return says.PublishFault()
	}
	return meaningOf(err).fault
}

// meaning is what an error means.
type meaning struct {
	fault relay.Fault
	class retry.Class
}

// meanings is the table from Kafka's error codes to what the relay does. A test compares it with that of package kafkago. A code that
// is not here is unknown.
var meanings = map[*kerr.Error]meaning{
	// The record. Each of these refuses the whole batch and writes nothing of it, so the batch is divided.
	kerr.MessageTooLarge:    {relay.FaultRecord, retry.Validation}, // longer than the topic's max.message.bytes
	kerr.RecordListTooLarge: {relay.FaultRecord, retry.Validation}, // longer than a segment
	kerr.InvalidRecord:      {relay.FaultRecord, retry.Validation}, // no key on a compacted topic, a broker's own validation
	kerr.CorruptMessage:     {relay.FaultRecord, retry.Validation}, // damage on the way, or a missing key on a compacted topic of an old broker

	// The topic.
	kerr.UnknownTopicOrPartition:     {relay.FaultTopic, retry.Unavailable},
	kerr.UnknownTopicID:              {relay.FaultTopic, retry.Unavailable},
	kerr.InconsistentTopicID:         {relay.FaultTopic, retry.Unavailable},
	kerr.InvalidTopicException:       {relay.FaultTopic, retry.Unavailable},
	kerr.TopicAuthorizationFailed:    {relay.FaultTopic, retry.Auth},
	kerr.InvalidTimestamp:            {relay.FaultTopic, retry.Unavailable}, // of this machine's clock: the same for every record
	kerr.UnsupportedForMessageFormat: {relay.FaultTopic, retry.Unavailable},
	kerr.UnsupportedCompressionType:  {relay.FaultTopic, retry.Unavailable},
	kerr.PolicyViolation:             {relay.FaultTopic, retry.Unavailable},
	kerr.InvalidConfig:               {relay.FaultTopic, retry.Unavailable},

	// The partition.
	kerr.UnknownServerError:           {relay.FaultPartition, retry.Transient},
	kerr.LeaderNotAvailable:           {relay.FaultPartition, retry.Unavailable},
	kerr.NotLeaderForPartition:        {relay.FaultPartition, retry.Unavailable},
	kerr.RequestTimedOut:              {relay.FaultPartition, retry.Timeout},
	kerr.BrokerNotAvailable:           {relay.FaultPartition, retry.Unavailable},
	kerr.ReplicaNotAvailable:          {relay.FaultPartition, retry.Unavailable},
	kerr.NotEnoughReplicas:            {relay.FaultPartition, retry.Unavailable},
	kerr.NotEnoughReplicasAfterAppend: {relay.FaultPartition, retry.Unavailable},
	kerr.KafkaStorageError:            {relay.FaultPartition, retry.Unavailable},
	kerr.LogDirNotFound:               {relay.FaultPartition, retry.Unavailable},
	kerr.ReassignmentInProgress:       {relay.FaultPartition, retry.Unavailable},
	kerr.FencedLeaderEpoch:            {relay.FaultPartition, retry.Unavailable},
	kerr.UnknownLeaderEpoch:           {relay.FaultPartition, retry.Unavailable},
	kerr.PreferredLeaderNotAvailable:  {relay.FaultPartition, retry.Unavailable},
	kerr.EligibleLeadersNotAvailable:  {relay.FaultPartition, retry.Unavailable},
	kerr.OffsetNotAvailable:           {relay.FaultPartition, retry.Unavailable},

	// The broker, or our way in.
	kerr.NetworkException:                   {relay.FaultBroker, retry.Unavailable},
	kerr.StaleBrokerEpoch:                   {relay.FaultBroker, retry.Unavailable},
	kerr.ListenerNotFound:                   {relay.FaultBroker, retry.Unavailable},
	kerr.ThrottlingQuotaExceeded:            {relay.FaultBroker, retry.RateLimit},
	kerr.ClusterAuthorizationFailed:         {relay.FaultBroker, retry.Auth},
	kerr.TransactionalIDAuthorizationFailed: {relay.FaultBroker, retry.Auth},
	kerr.UnsupportedSaslMechanism:           {relay.FaultBroker, retry.Auth},
	kerr.IllegalSaslState:                   {relay.FaultBroker, retry.Auth},
	kerr.SaslAuthenticationFailed:           {relay.FaultBroker, retry.Auth},
	kerr.SecurityDisabled:                   {relay.FaultBroker, retry.Auth},
	kerr.UnacceptableCredential:             {relay.FaultBroker, retry.Auth},
	kerr.PrincipalDeserializationFailure:    {relay.FaultBroker, retry.Auth},
	kerr.InvalidPrincipalType:               {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenAuthDisabled:        {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenNotFound:            {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenOwnerMismatch:       {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenRequestNotAllowed:   {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenAuthorizationFailed: {relay.FaultBroker, retry.Auth},
	kerr.DelegationTokenExpired:             {relay.FaultBroker, retry.Auth},
	kerr.InconsistentClusterID:              {relay.FaultBroker, retry.Unavailable},
	kerr.InvalidRequiredAcks:                {relay.FaultBroker, retry.Unavailable},
	kerr.UnsupportedVersion:                 {relay.FaultBroker, retry.Unavailable},
}

// unknown is what a code outside the table means: hold the partition and say so, rather than lose.
var unknown = meaning{relay.FaultPartition, retry.Transient}

// meaningOf looks err up: Kafka's codes first, then what package retry knows.
func meaningOf(err error) meaning {
	var code *kerr.Error
	if errors.As(err, &code) {
		if m, ok := meanings[code]; ok {
			return m
		}
		return unknown
	}
	if retry.IsPermanent(err) {
		return meaning{relay.FaultRecord, retry.Validation}
	}
	return meaning{relay.FaultBroker, retry.Classify(err)}
}

// nothingWritten are the answers after which the broker has certainly written nothing of this request. After any other it may have:
// also after NOT_LEADER_OR_FOLLOWER, which a broker answers to what waits for its replicas when it loses the partition. The next leader
// may have the batch then.
func nothingWritten(err error) bool {
	var code *kerr.Error
	if !errors.As(err, &code) {
		return neverSent(err)
	}
	switch code {
	case kerr.NotEnoughReplicas, kerr.ClusterAuthorizationFailed, kerr.InvalidRequiredAcks, kerr.UnsupportedVersion:
		return true
	}
	f := meanings[code].fault
	return f == relay.FaultRecord || f == relay.FaultTopic
}

// errWaited is that of a batch that was not sent in time, because others were.
var errWaited = errors.New("the requests before it took too long")

// neverSent says of an error without a code that nothing was sent.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.Is(err, errWaited) || errors.As(err, &op) && op.Op == "dial"
}

// forgotten are the answers of a broker that knows nothing of what this producer wrote before, or of its identity, or that has records
// under numbers that we have not used. The partition gets another identity.
func forgotten(err error) bool {
	for _, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.DuplicateSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch,
		kerr.InvalidProducerIDMapping, kerr.ProducerFenced} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// unanswered says whether err is of the network: whether the broker that was asked gave no answer at all.
func unanswered(err error) bool {
	var code *kerr.Error
	if errors.As(err, &code) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		retry.Classify(err) == retry.Unavailable
}

// sizeRefused says whether a batch was refused for its length, which a shorter batch fixes.
func sizeRefused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// publishError is the answer for an event that is not acknowledged because of err.
func publishError(at place, err error) *relay.PublishError {
	m := meaningOf(err)
	return &relay.PublishError{Topic: at.topic, Partition: at.partition, Fault: m.fault, Class: m.class, Err: err}
}

// notSent is the answer for an event that never left, because of err.
func notSent(at place, err error) *relay.PublishError {
	e := publishError(at, err)
	e.NotSent = true
	return e
}

// answerError is the error of a code that a broker answered, with its text.
func answerError(code int16, text string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
