package kafkago

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast/internal/kafkafault"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// lastCode is the highest code kafka-go has a constant for. There is one for -1 and for each from 1 to here.
const lastCode = kafka.FetchSessionTopicIDError

func TestErrors_OnlyWhatIsWrongWithTheRecordItselfSpendsAttempts(t *testing.T) {
	want := []kafka.Error{kafka.InvalidMessage, kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord}
	var got []kafka.Error
	for code := kafka.Unknown; code <= lastCode; code++ {
		if code != 0 && FaultOf(code) == publish.FaultRecord {
			got = append(got, code)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("record faults are %v, want %v", got, want)
	}
}

func TestErrors_EveryCodeOfKafkaHoldsSomething(t *testing.T) {
	for code := kafka.Unknown; code <= lastCode; code++ {
		if code == 0 {
			continue
		}
		err := publishError("orders", 3, FaultOf(code), code)
		if want := kafkafault.Of(int(code)).Fault; err.Fault != want {
			t.Errorf("%v is %q, and by the table of both clients %q", code, err.Fault, want)
		}
		switch err.Fault {
		case publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker:
		default:
			t.Errorf("%v is %q", code, err.Fault)
		}
		if class := err.RetryClass(); class == "" || (class == retry.Validation) != (err.Fault == publish.FaultRecord) {
			t.Errorf("%v, a fault of the %s, is of class %q", code, err.Fault, class)
		}
	}
	if got := FaultOf(kafka.Error(4711)); got != publish.FaultPartition {
		t.Errorf("a code of the future is %q", got)
	}
}

// faultyError is an error of somebody else's Publisher.
type faultyError struct{ fault publish.Fault }

func (e faultyError) Error() string               { return "no" }
func (e faultyError) PublishFault() publish.Fault { return e.fault }

// panickingError is such an error with a mistake.
type panickingError struct{}

func (panickingError) Error() string               { return "no" }
func (panickingError) PublishFault() publish.Fault { panic("planned") }

func TestErrors_FaultOf(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("kafka.(*Client).Produce: %w", err) }
	for _, test := range []struct {
		name  string
		err   error
		fault publish.Fault
		class retry.Class
	}{
		{"no error is no fault", nil, "", ""},
		{"a record that is too large", wrap(kafka.MessageSizeTooLarge), publish.FaultRecord, retry.Validation},
		{"kafka-go's own error for it", kafka.MessageTooLargeError{}, publish.FaultRecord, retry.Validation},
		{"a code with the broker's words", fmt.Errorf("%w: no key", kafka.InvalidRecord), publish.FaultRecord, retry.Validation},
		{"a clock the broker does not believe is no record's fault", kafka.InvalidTimestamp, publish.FaultTopic, retry.Unavailable},
		{"a missing topic", kafka.UnknownTopicOrPartition, publish.FaultTopic, retry.Unavailable},
		{"a topic kafka-go has not seen", wrap(produce.NewError(protocol.NewErrNoTopic("t"))), publish.FaultTopic, retry.Unavailable},
		{"no right to write", kafka.TopicAuthorizationFailed, publish.FaultTopic, retry.Auth},
		{"a partition kafka-go has not seen", wrap(produce.NewError(protocol.NewErrNoPartition("t", 1))), publish.FaultPartition, retry.Unavailable},
		{"no leader", wrap(produce.NewError(protocol.NewErrNoLeader("t", 1))), publish.FaultPartition, retry.Unavailable},
		{"too few replicas", kafka.NotEnoughReplicas, publish.FaultPartition, retry.Unavailable},
		{"too few replicas after writing", kafka.NotEnoughReplicasAfterAppend, publish.FaultPartition, retry.Unavailable},
		{"replication that takes too long", kafka.RequestTimedOut, publish.FaultPartition, retry.Timeout},
		{"a code between the rows", kafka.RebalanceInProgress, publish.FaultPartition, retry.Transient},
		{"a wrong password", wrap(kafka.SASLAuthenticationFailed), publish.FaultBroker, retry.Auth},
		{"no answer in time", wrap(context.DeadlineExceeded), publish.FaultBroker, retry.Timeout},
		{"a connection refused", wrap(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), publish.FaultBroker, retry.Unavailable},
		{"a connection cut", wrap(io.ErrUnexpectedEOF), publish.FaultBroker, retry.Unavailable},
		{"a name that does not resolve", &net.DNSError{}, publish.FaultBroker, retry.Unavailable},
		{"an answer to another question", protocol.Errorf("correlation id mismatch"), publish.FaultBroker, retry.Transient},
		{"a foreign error", errors.New("?"), publish.FaultBroker, retry.Transient},
		{"a foreign error that is permanent", retry.Permanent(errors.New("?")), publish.FaultRecord, retry.Validation},
		{"a foreign error that says so itself", wrap(faultyError{publish.FaultTopic}), publish.FaultTopic, ""},
		{"a foreign error that panics instead of saying so", wrap(panickingError{}), publish.FaultBroker, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := FaultOf(test.err); got != test.fault {
				t.Errorf("fault %q, want %q", got, test.fault)
			}
			if test.class == "" {
				return
			}
			published := publishError("orders", 3, test.fault, test.err)
			if got := retry.Classify(fmt.Errorf("publish: %w", published)); got != test.class {
				t.Errorf("class %q, want %q", got, test.class)
			}
			if reflect.TypeOf(test.err).Comparable() && !errors.Is(published, test.err) {
				t.Error("the cause is not kept")
			}
		})
	}
}

func TestErrors_PublishErrorsNameTheirPlace(t *testing.T) {
	cause := &publish.Error{Topic: "orders", Partition: 3, Fault: publish.FaultRecord, Err: kafka.MessageSizeTooLarge}
	behind := &publish.Error{Topic: "orders", Partition: 3, Fault: publish.FaultRecord, NotSent: true, Err: cause}
	unknown := &publish.Error{Topic: "orders", Partition: -1, Fault: publish.FaultTopic, Err: kafka.UnknownTopicOrPartition}
	for _, test := range []struct {
		err    error
		prefix string
	}{
		{cause, "publish to topic orders, partition 3: [10] Message Size Too Large"},
		{behind, "not sent to topic orders, partition 3: publish to topic orders, partition 3: [10]"},
		{unknown, "publish to topic orders: [3] Unknown Topic"},
	} {
		if got := test.err.Error(); !strings.HasPrefix(got, test.prefix) {
			t.Errorf("%q does not begin with %q", got, test.prefix)
		}
	}
	if !errors.Is(behind, kafka.MessageSizeTooLarge) {
		t.Error("the error of what was in front is not kept")
	}
}
