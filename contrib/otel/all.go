package holdfastotel

import (
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/metrics"
)

// Spans adds spans to each of the Observers of a program, as OutboxSpans, RelaySpans, InboxSpans, IdempotencySpans and WebhookSpans do, and
// the events of RetryEvents. o may be that of metrics.All, or zero.
func Spans(tracer trace.Tracer, o metrics.Observers) metrics.Observers {
	return metrics.Observers{
		Outbox:      OutboxSpans(tracer, o.Outbox),
		Relay:       RelaySpans(tracer, o.Relay),
		Inbox:       InboxSpans(tracer, o.Inbox),
		Idempotency: IdempotencySpans(tracer, o.Idempotency),
		Webhook:     WebhookSpans(tracer, o.Webhook),
		Retry:       RetryEvents(o.Retry),
		Wait:        o.Wait, // its request has a span already
	}
}
