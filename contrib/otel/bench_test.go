package holdfastotel_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
)

// What the observers cost for one event, with nobody who reads the metrics.
func BenchmarkObserverOfAnInboxPerEvent(b *testing.B) {
	o, err := metrics.Inbox(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())).Meter("bench")), "billing")
	if err != nil {
		b.Fatal(err)
	}
	es := []holdfast.Event{{ID: "1", Topic: "orders", Type: "told", Time: time.Now()}}
	for b.Loop() {
		if o.OnHandle != nil {
			_, ended := o.OnHandle(b.Context(), inbox.Handling{Consumer: "billing", Events: es, Attempt: 1, FromState: "none"})
			ended(nil)
		}
		o.OnReceive(inbox.Received{Event: es[0], Outcome: inbox.Handled, Attempt: 1, Took: time.Millisecond})
	}
}

func BenchmarkObserverOfARelayPerCallOf1000(b *testing.B) {
	o, err := metrics.Relay(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())).Meter("bench")))
	if err != nil {
		b.Fatal(err)
	}
	es, errs := make([]holdfast.Event, 1000), make([]error, 1000)
	for i := range es {
		es[i] = holdfast.Event{ID: "1", Topic: "orders", Type: "told", Time: time.Now()}
	}
	for b.Loop() {
		_, ended := o.OnPublish(b.Context(), relay.Publishing{Topic: "orders", Events: es})
		ended(errs)
		o.OnPublished(0, es)
	}
}
