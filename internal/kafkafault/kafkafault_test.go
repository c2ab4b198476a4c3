package kafkafault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// lastCode is beyond every code of Kafka 4.
const lastCode = 150

func TestKafkaFault_OnlyWhatIsWrongWithTheRecordItselfSpendsAttempts(t *testing.T) {
	t.Parallel()
	var got []int
	for code := -1; code <= lastCode; code++ {
		if m := Of(code); m.Fault == publish.FaultRecord {
			got = append(got, code)
			if m.Class != retry.Validation {
				t.Errorf("%d is of the class %s", code, m.Class)
			}
		} else if m.Class == retry.Validation || m.Class == "" {
			t.Errorf("%d, a fault of the %s, is of the class %q", code, m.Fault, m.Class)
		}
	}
	if want := []int{2, 10, 18, 87}; !slices.Equal(got, want) { // CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD
		t.Errorf("record faults are %v, want %v", got, want)
	}
}

func TestKafkaFault_EveryCodeHoldsSomething(t *testing.T) {
	t.Parallel()
	faults := map[publish.Fault]int{}
	for code, m := range meanings {
		faults[m.Fault]++
		if code == 0 || code > lastCode {
			t.Errorf("the table has the code %d", code)
		}
	}
	if len(faults) != 4 || faults[publish.FaultTopic] != 10 || faults[publish.FaultPartition] != 16 {
		t.Errorf("faults are %v", faults)
	}
	for _, code := range []int{0, 55, 4711, 1 << 30, -2} { // 55: OPERATION_NOT_ATTEMPTED
		if got := Of(code); got != unknown || got.Fault != publish.FaultPartition {
			t.Errorf("%d, which the table has not, is %v", code, got)
		}
	}
}

func TestKafkaFault_ErrorsWithoutACode(t *testing.T) {
	t.Parallel()
	away := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, c := range []struct {
		err        error
		fault      publish.Fault
		unanswered bool
	}{
		{retry.Permanent(errors.New("it is wrong")), publish.FaultRecord, false},
		{fmt.Errorf("produce: %w", away), publish.FaultBroker, true},
		{fmt.Errorf("produce: %w", context.DeadlineExceeded), publish.FaultBroker, true},
		{os.ErrDeadlineExceeded, publish.FaultBroker, true},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, publish.FaultBroker, true},
		{io.ErrUnexpectedEOF, publish.FaultBroker, true},
		{context.Canceled, publish.FaultBroker, false},
		{errors.New("odd"), publish.FaultBroker, false},
	} {
		if got := Without(c.err); got.Fault != c.fault || got.Class == "" || Unanswered(c.err) != c.unanswered {
			t.Errorf("%v is %v, unanswered %t", c.err, got, Unanswered(c.err))
		}
	}
	if got := Said(nil, Without); got != "" {
		t.Errorf("nil is %q", got)
	}
	if got := Said(fmt.Errorf("no: %w", &publish.Error{Fault: publish.FaultTopic, Err: away}), Without); got != publish.FaultTopic {
		t.Errorf("an error that says it is of the topic is %q", got)
	}
}
