package metrics_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/metrics"
)

// set lists the functions of Observers that are set, as "Inbox.OnHandle".
func set(o metrics.Observers) (names []string) {
	of := reflect.ValueOf(o)
	for i := range of.NumField() {
		for j := range of.Field(i).NumField() {
			if !of.Field(i).Field(j).IsNil() {
				names = append(names, of.Type().Field(i).Name+"."+of.Field(i).Type().Field(j).Name)
			}
		}
	}
	return names
}

func TestAll_EachObserverIsThatOfItsFunction(t *testing.T) {
	t.Parallel()
	all, err := metrics.All(newLedger(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	var alone metrics.Observers
	var errs [7]error
	l := newLedger()
	alone.Outbox, errs[0] = metrics.Outbox(l)
	alone.Relay, errs[1] = metrics.Relay(l)
	alone.Inbox, errs[2] = metrics.Inbox(l, "billing")
	alone.Idempotency, errs[3] = metrics.Idempotency(l)
	alone.Webhook, errs[4] = metrics.Webhook(l)
	alone.Retry, errs[5] = metrics.Retry(l)
	alone.Wait, errs[6] = metrics.Wait(l)
	if got, want := fmt.Sprint(set(all)), fmt.Sprint(set(alone)); got != want || len(set(all)) < 20 || errs != [7]error{} {
		t.Errorf("got  %s\nwant %s (%v)", got, want, errs)
	}
	for i := range reflect.TypeFor[metrics.Observers]().NumField() {
		if name := reflect.TypeFor[metrics.Observers]().Field(i).Name; !strings.Contains(fmt.Sprint(set(all)), name+".") {
			t.Errorf("of %s nothing is set", name)
		}
	}
}

// refusing makes no instrument.
type refusing struct{ metrics.Meter }

func (refusing) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	return nil, fmt.Errorf("planned for %s", i.Name)
}

func TestAll_AnErrorIsOfEveryPart(t *testing.T) {
	t.Parallel()
	o, err := metrics.All(refusing{newLedger()}, "billing")
	if err == nil || len(set(o)) != 0 {
		t.Fatalf("%v, with %q", err, set(o))
	}
	for _, part := range []string{"holdfast.outbox", "sent.messages", "consumed.messages", "idempotent.", "holdfast.webhook", "holdfast.retry", "holdfast.wait"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error says nothing of %s: %v", part, err)
		}
	}
}
