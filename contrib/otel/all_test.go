package holdfastotel_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"reflect"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast"
	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// set lists the functions of an Observer that are set.
func set(observer any) (names []string) {
	of := reflect.ValueOf(observer)
	for i := range of.NumField() {
		if !of.Field(i).IsNil() {
			names = append(names, of.Type().Field(i).Name)
		}
	}
	return names
}

func TestAll_SpansAreThoseOfEachFunction(t *testing.T) {
	t.Parallel()
	tracer := noop.NewTracerProvider().Tracer("")
	all := reflect.ValueOf(holdfastotel.Spans(tracer, metrics.Observers{}))
	for name, alone := range map[string]any{
		"Outbox":      holdfastotel.OutboxSpans(tracer, outbox.Observer{}),
		"Relay":       holdfastotel.RelaySpans(tracer, relay.Observer{}),
		"Inbox":       holdfastotel.InboxSpans(tracer, inbox.Observer{}),
		"Idempotency": holdfastotel.IdempotencySpans(tracer, idempotency.Observer{}),
		"Webhook":     holdfastotel.WebhookSpans(tracer, webhook.Observer{}),
		"Retry":       holdfastotel.RetryEvents(retry.Observer{}),
		"Wait":        holdfast.WaitObserver{},
	} {
		if got, want := fmt.Sprint(set(all.FieldByName(name).Interface())), fmt.Sprint(set(alone)); got != want || got == "[]" && name != "Wait" {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if all.NumField() != 7 {
		t.Errorf("there are %d observers: this test looks at 7", all.NumField())
	}
}

// A function that an Observer has already is called too.
func TestAll_SpansKeepWhatObserversDid(t *testing.T) {
	t.Parallel()
	called := 0
	o := holdfastotel.Spans(noop.NewTracerProvider().Tracer(""), metrics.Observers{
		Retry: retry.Observer{OnAttempt: func(retry.Attempt) { called++ }},
		Wait:  holdfast.WaitObserver{OnWaited: func(context.Context, holdfast.Waited) { called++ }},
	})
	o.Retry.OnAttempt(retry.Attempt{Request: httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)})
	o.Wait.OnWaited(t.Context(), holdfast.Waited{})
	if called != 2 {
		t.Errorf("it was called %d times", called)
	}
}
