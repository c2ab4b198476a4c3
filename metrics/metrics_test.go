package metrics_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/instruments"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestMetrics_LabelsOfTopicsAreBoundedAlsoForTopicsInTrouble(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o, err := metrics.Relay(l)
	if err != nil {
		t.Fatal(err)
	}
	refused := []error{&publish.Error{Fault: publish.FaultTopic, Err: errors.New("planned")}}
	for i := range 500 {
		for kind, errs := range map[string][]error{"junk": refused, "real": {nil}} {
			_, ended := o.OnPublish(t.Context(), relay.Publishing{Topic: fmt.Sprint(kind, i)})
			ended(errs)
		}
	}
	topics, sum := 0, 0.0
	for name, value := range l.values {
		if strings.HasPrefix(name, "messaging.client.sent.messages ") {
			topics, sum = topics+1, sum+value
		}
	}
	if topics != 200+2 || sum != 1000 {
		t.Errorf("%d series have %v messages", topics, sum)
	}
}

func TestMetrics_ACallOfTheBrokerIsCountedByItsAnswers(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o, err := metrics.Relay(l)
	if err != nil {
		t.Fatal(err)
	}
	bad := &publish.Error{Fault: publish.FaultRecord, Err: errors.New("planned")}
	_, ended := o.OnPublish(t.Context(), relay.Publishing{System: "nats", Topic: "orders"})
	ended([]error{nil, bad, nil})
	now := time.Now()
	o.OnPublished(0, []holdfast.Event{{Topic: "orders", Time: now}, {Topic: "orders", Time: now.Add(-time.Hour)}, {Topic: "bills", Time: now}})
	o.OnReclaimed(0, "refused: transaction 7 holds it")
	for name, want := range map[string]float64{
		"messaging.client.sent.messages nats,publish,orders,": 2, "messaging.client.sent.messages nats,publish,orders,record": 1,
		"holdfast.relay.published orders": 2, "holdfast.relay.published bills": 1, "holdfast.relay.reclaimed refused": 1,
	} {
		if l.values[name] != want {
			t.Errorf("%s is %v, want %v", name, l.values[name], want)
		}
	}
	if lag := l.values["holdfast.relay.lag "]; lag < 3600 || lag > 7200 {
		t.Errorf("the lag is %v s, want that of the oldest event", lag)
	}
	if _, timed := l.values["messaging.client.operation.duration nats,publish,orders,record"]; !timed {
		t.Errorf("the call is not timed by its first failure: %v", l.values)
	}
}

func TestMetrics_NoTwoInstrumentsHaveOneName(t *testing.T) {
	t.Parallel()
	for _, i := range instruments.All() { // It panics if two differ.
		if !slices.IsSorted(i.Buckets) {
			t.Errorf("the buckets of %s are %v", i.Name, i.Buckets)
		}
	}
}

func TestMetrics_StepsOfHandlersAreCountedByTheirResult(t *testing.T) {
	t.Parallel()
	l := newLedger()
	o, err := metrics.Inbox(l, "billing")
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range []inbox.StepResult{inbox.StepDone, inbox.StepKnown, inbox.StepKnown} {
		o.OnStep(inbox.Stepped{Result: result})
	}
	if done, known := l.values["holdfast.inbox.steps billing,done"], l.values["holdfast.inbox.steps billing,known"]; done != 1 || known != 2 {
		t.Errorf("%v were done and %v known", done, known)
	}
}
