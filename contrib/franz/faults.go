package franz

import (
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/holdfast-go/holdfast/internal/kafkafault"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// FaultOf says what an error of franz-go means for a relay, for a publish.Publisher of your own on franz-go: "" for nil. An error that
// says so itself is believed, as publish.FaultOf does. A *kerr.Error is looked up in a table of all codes that a broker answers to a
// Produce or Metadata request. Of all others only those that are retry.Permanent are the record's own.
func FaultOf(err error) publish.Fault {
	return kafkafault.Said(err, meaningOf)
}

// meaningOf looks err up: Kafka's codes first, then what package retry knows.
func meaningOf(err error) kafkafault.Meaning {
	var code *kerr.Error
	if errors.As(err, &code) {
		return kafkafault.Of(int(code.Code))
	}
	return kafkafault.Without(err)
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
	f := meaningOf(code).Fault
	return f == publish.FaultRecord || f == publish.FaultTopic
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
	return !errors.As(err, &code) && kafkafault.Unanswered(err)
}

// sizeRefused says whether a batch was refused for its length, which a shorter batch fixes.
func sizeRefused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// publishError is the answer for an event that is not acknowledged because of err.
func publishError(at place, err error) *publish.Error {
	m := meaningOf(err)
	return &publish.Error{
		Topic:     at.topic,
		Partition: at.partition,
		Fault:     m.Fault,
		Class:     m.Class,
		Err:       err,
	}
}

// notSent is the answer for an event that never left, because of err.
func notSent(at place, err error) *publish.Error {
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
