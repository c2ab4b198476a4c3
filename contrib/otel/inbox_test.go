package holdfastotel_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

func TestInbox_EventsAndDeliveriesAreCountedByOutcome(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	meter := holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"))
	events, err := metrics.Inbox(meter, "billing")
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := metrics.Webhook(meter)
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(migrated.New(t).Pool, inbox.Config{Consumer: "billing", Observer: events, Retry: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("paid", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		if string(e.Payload) == "bad" {
			return errors.New("planned")
		}
		return nil
	})
	good := holdfast.Event{Topic: "payments", Key: "1", Type: "paid", Source: "bank", Payload: []byte("good")}
	for _, e := range []holdfast.Event{good, good} {
		e.ID = "7d7f6a3c-7b0e-4f0e-9a53-6a2d1c0f8f01"
		if _, err := in.Receive(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	hooks.OnRefused(webhook.Refused{Source: "bank", Status: http.StatusUnauthorized, Reason: "mismatch"})
	hooks.OnDelivery(webhook.Answered{Source: "bank", Outcome: inbox.Handled, Status: 200, Delivery: webhook.Delivery{Secret: 1}, Took: time.Second})
	got := collected(t, reader)
	for name, want := range map[string]int64{
		"holdfast.inbox.events{consumer=billing,outcome=handled}": 1, "holdfast.inbox.events{consumer=billing,outcome=duplicate}": 1,
		"holdfast.inbox.duration{consumer=billing,outcome=handled}": 1,
		"holdfast.webhook.refused{reason=mismatch,source=bank}":     1, "holdfast.webhook.deliveries{outcome=handled,secret=1,source=bank,status=200}": 1, "holdfast.webhook{source=bank}": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d, of %v", name, got[name], want, got)
		}
	}
}
