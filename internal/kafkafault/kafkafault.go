// Package kafkafault says what the errors mean with which Kafka answers a request to produce, or for metadata: for kafkago and for
// contrib/franz, each of which reads the code out of its client's errors.
package kafkafault

import (
	"errors"
	"net"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// Meaning is what an error means for a relay: what takes nothing, and of which class the error is.
type Meaning struct {
	Fault publish.Fault
	Class retry.Class
}

// meanings is the one table from Kafka's error codes to what the relay does. A code that is not here cannot be the answer to a Produce or
// Metadata request of today's Kafka (it belongs to groups, transactions, the controllers), or is newer than this build. The names are
// those of Kafka's protocol (org.apache.kafka.common.protocol.Errors).
var meanings = map[int]Meaning{
	// The record. Each of these refuses the whole batch and writes nothing of it, so the batch is divided. CORRUPT_MESSAGE is a checksum that does
	// not fit: damage on the way, which sending again fixes, or, on old brokers, a missing key on a compacted topic, which nothing
	// fixes. The attempts that a record's fault spends tell the one from the other.
	2:  {publish.FaultRecord, retry.Validation}, // CORRUPT_MESSAGE
	10: {publish.FaultRecord, retry.Validation}, // MESSAGE_TOO_LARGE: longer than the topic's max.message.bytes
	18: {publish.FaultRecord, retry.Validation}, // RECORD_LIST_TOO_LARGE: longer than a segment
	87: {publish.FaultRecord, retry.Validation}, // INVALID_RECORD: no key on a compacted topic, a broker's own validation

	// The topic. Records are stamped with this machine's clock, so a refused timestamp is the clock's trouble or the topic's
	// settings', for every record alike: taken for a record's fault it would turn a wrong clock into dead letters.
	3:   {publish.FaultTopic, retry.Unavailable}, // UNKNOWN_TOPIC_OR_PARTITION
	17:  {publish.FaultTopic, retry.Unavailable}, // INVALID_TOPIC_EXCEPTION
	29:  {publish.FaultTopic, retry.Auth},        // TOPIC_AUTHORIZATION_FAILED
	32:  {publish.FaultTopic, retry.Unavailable}, // INVALID_TIMESTAMP
	40:  {publish.FaultTopic, retry.Unavailable}, // INVALID_CONFIG
	43:  {publish.FaultTopic, retry.Unavailable}, // UNSUPPORTED_FOR_MESSAGE_FORMAT: the topic keeps a format without headers
	44:  {publish.FaultTopic, retry.Unavailable}, // POLICY_VIOLATION
	76:  {publish.FaultTopic, retry.Unavailable}, // UNSUPPORTED_COMPRESSION_TYPE
	100: {publish.FaultTopic, retry.Unavailable}, // UNKNOWN_TOPIC_ID
	103: {publish.FaultTopic, retry.Unavailable}, // INCONSISTENT_TOPIC_ID

	// The partition. After REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND and UNKNOWN_SERVER_ERROR the records may be written.
	-1: {publish.FaultPartition, retry.Transient},   // UNKNOWN_SERVER_ERROR
	5:  {publish.FaultPartition, retry.Unavailable}, // LEADER_NOT_AVAILABLE
	6:  {publish.FaultPartition, retry.Unavailable}, // NOT_LEADER_OR_FOLLOWER
	7:  {publish.FaultPartition, retry.Timeout},     // REQUEST_TIMED_OUT
	8:  {publish.FaultPartition, retry.Unavailable}, // BROKER_NOT_AVAILABLE: kafka-go's answer for a leader that it has no address of
	9:  {publish.FaultPartition, retry.Unavailable}, // REPLICA_NOT_AVAILABLE
	19: {publish.FaultPartition, retry.Unavailable}, // NOT_ENOUGH_REPLICAS
	20: {publish.FaultPartition, retry.Unavailable}, // NOT_ENOUGH_REPLICAS_AFTER_APPEND
	56: {publish.FaultPartition, retry.Unavailable}, // KAFKA_STORAGE_ERROR
	57: {publish.FaultPartition, retry.Unavailable}, // LOG_DIR_NOT_FOUND
	60: {publish.FaultPartition, retry.Unavailable}, // REASSIGNMENT_IN_PROGRESS
	74: {publish.FaultPartition, retry.Unavailable}, // FENCED_LEADER_EPOCH
	75: {publish.FaultPartition, retry.Unavailable}, // UNKNOWN_LEADER_EPOCH
	78: {publish.FaultPartition, retry.Unavailable}, // OFFSET_NOT_AVAILABLE
	80: {publish.FaultPartition, retry.Unavailable}, // PREFERRED_LEADER_NOT_AVAILABLE
	83: {publish.FaultPartition, retry.Unavailable}, // ELIGIBLE_LEADERS_NOT_AVAILABLE

	// The broker, or our way in. What we ask for is fixed, so INVALID_REQUIRED_ACKS and UNSUPPORTED_VERSION say that the other end is no Kafka
	// that we know.
	13:  {publish.FaultBroker, retry.Unavailable}, // NETWORK_EXCEPTION
	21:  {publish.FaultBroker, retry.Unavailable}, // INVALID_REQUIRED_ACKS
	31:  {publish.FaultBroker, retry.Auth},        // CLUSTER_AUTHORIZATION_FAILED
	33:  {publish.FaultBroker, retry.Auth},        // UNSUPPORTED_SASL_MECHANISM
	34:  {publish.FaultBroker, retry.Auth},        // ILLEGAL_SASL_STATE
	35:  {publish.FaultBroker, retry.Unavailable}, // UNSUPPORTED_VERSION
	53:  {publish.FaultBroker, retry.Auth},        // TRANSACTIONAL_ID_AUTHORIZATION_FAILED
	54:  {publish.FaultBroker, retry.Auth},        // SECURITY_DISABLED
	58:  {publish.FaultBroker, retry.Auth},        // SASL_AUTHENTICATION_FAILED
	61:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_AUTH_DISABLED
	62:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_NOT_FOUND
	63:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_OWNER_MISMATCH
	64:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
	65:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_AUTHORIZATION_FAILED
	66:  {publish.FaultBroker, retry.Auth},        // DELEGATION_TOKEN_EXPIRED
	67:  {publish.FaultBroker, retry.Auth},        // INVALID_PRINCIPAL_TYPE
	72:  {publish.FaultBroker, retry.Unavailable}, // LISTENER_NOT_FOUND
	77:  {publish.FaultBroker, retry.Unavailable}, // STALE_BROKER_EPOCH
	89:  {publish.FaultBroker, retry.RateLimit},   // THROTTLING_QUOTA_EXCEEDED
	93:  {publish.FaultBroker, retry.Auth},        // UNACCEPTABLE_CREDENTIAL
	97:  {publish.FaultBroker, retry.Auth},        // PRINCIPAL_DESERIALIZATION_FAILURE
	104: {publish.FaultBroker, retry.Unavailable}, // INCONSISTENT_CLUSTER_ID
}

// unknown is what a code outside the table means: hold the partition and say so, rather than lose.
var unknown = Meaning{publish.FaultPartition, retry.Transient}

// Of says what a code means.
func Of(code int) Meaning {
	if m, known := meanings[code]; known {
		return m
	}
	return unknown
}

// Without says what an error without a code means: only those that are retry.Permanent are the record's own.
func Without(err error) Meaning {
	if retry.IsPermanent(err) {
		return Meaning{publish.FaultRecord, retry.Validation}
	}
	return Meaning{publish.FaultBroker, retry.Classify(err)}
}

// Unanswered says of an error without a code whether it is of the network: whether the broker that was asked gave no answer at all. A
// deadline that has passed, of a context or a connection, is a net.Error.
func Unanswered(err error) bool {
	var network net.Error
	return errors.As(err, &network) || retry.Classify(err) == retry.Unavailable
}

// Said is the fault that an error says itself, as publish.FaultOf believes it, or that otherwise says.
func Said(err error, otherwise func(error) Meaning) publish.Fault {
	if err == nil {
		return ""
	}
	var says interface{ PublishFault() publish.Fault }
	if errors.As(foreign.Error(err), &says) {
		return publish.FaultOf(err)
	}
	return otherwise(err).Fault
}
