package publish_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// faultyError is an error of somebody else's Publisher.
type faultyError struct{ fault publish.Fault }

func (e faultyError) Error() string               { return "no" }
func (e faultyError) PublishFault() publish.Fault { return e.fault }

func TestPublisher_FaultOfBelievesAnErrorThatSaysItsFault(t *testing.T) {
	for _, row := range []struct {
		name string
		err  error
		want publish.Fault
	}{
		{"no error is no fault", nil, ""},
		{"an Error", fmt.Errorf("publish: %w", &publish.Error{Fault: publish.FaultPartition}), publish.FaultPartition},
		{"another that says so itself", fmt.Errorf("publish: %w", faultyError{publish.FaultTopic}), publish.FaultTopic},
		{"one that says so and is permanent", retry.Permanent(faultyError{publish.FaultTopic}), publish.FaultTopic},
		{"one that is permanent", retry.Permanent(errors.New("?")), publish.FaultRecord},
		{"one that nothing is known of", errors.New("?"), publish.FaultBroker},
		{"a time-out", context.DeadlineExceeded, publish.FaultBroker},
	} {
		if got := publish.FaultOf(row.err); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

func TestPublisher_TheClassOfAnErrorFitsItsFault(t *testing.T) {
	refused := syscall.ECONNREFUSED
	for _, row := range []struct {
		name string
		err  *publish.Error
		want retry.Class
	}{
		{"a refused record", &publish.Error{Fault: publish.FaultRecord, Err: refused}, retry.Validation},
		{"by its cause", &publish.Error{Fault: publish.FaultBroker, Err: refused}, retry.Unavailable},
		{"by what the publisher says", &publish.Error{Fault: publish.FaultTopic, Class: retry.Auth, Err: refused}, retry.Auth},
		{"a cause that reads like a record's", &publish.Error{Fault: publish.FaultTopic, Err: retry.Permanent(refused)}, retry.Unavailable},
		{"not sent because of another", &publish.Error{Fault: publish.FaultTopic, NotSent: true, Err: &publish.Error{Fault: publish.FaultTopic, Class: retry.Auth, Err: refused}}, retry.Auth},
	} {
		if got := retry.Classify(fmt.Errorf("publish: %w", row.err)); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
		if !errors.Is(row.err, refused) {
			t.Errorf("%s: the cause is not kept", row.name)
		}
	}
}

func TestPublisher_ARecordHoldsTheEventInTheCloudEventsBinding(t *testing.T) {
	full := publish.RecordOf(holdfast.Event{ID: "1", Source: "shop", Type: "order.placed", Topic: "orders", Key: "k", Payload: []byte("p"),
		Headers: map[string]string{"tenant": "a", "b": ""}})
	want := publish.Record{Key: []byte("k"), Value: []byte("p"), Headers: []publish.Header{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("1")}, {Key: "ce_source", Value: []byte("shop")},
		{Key: "ce_type", Value: []byte("order.placed")}, {Key: "ce_subject", Value: []byte("k")}, {Key: "b", Value: []byte{}}, {Key: "tenant", Value: []byte("a")}}}
	if diff := cmp.Diff(want, full); diff != "" {
		t.Error(diff)
	}
	if bare := publish.RecordOf(holdfast.Event{ID: "1", Type: "t"}); bare.Key != nil || bare.Value != nil {
		t.Errorf("an event without key and payload has the record %+v", bare)
	}
}
