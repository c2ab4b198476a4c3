package holdfastotel

import (
	"context"
	"maps"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast"
)

// This file has what all spans share: names, and how an event carries its trace.

// Span attributes of events. They have the names that the log has. Those that begin with "messaging." are OpenTelemetry's
// conventions.
const (
	attrEventID     = attribute.Key("event_id")
	attrSource      = attribute.Key("source")
	attrEventType   = attribute.Key("type")
	attrFromState   = attribute.Key("from_state")
	attrToState     = attribute.Key("to_state")
	attrCorrelation = attribute.Key("correlation_id")
	attrErrorCode   = attribute.Key("error_code")
)

// Span attributes of guarded requests. The key is the same hash as in the log.
const (
	attrKey     = attribute.Key("idempotency_key")
	attrAttempt = attribute.Key("attempt")
	attrOutcome = attribute.Key("outcome")
)

const (
	attrSystem        = attribute.Key("messaging.system")
	attrOperation     = attribute.Key("messaging.operation.name")
	attrOperationType = attribute.Key("messaging.operation.type")
	attrDestination   = attribute.Key("messaging.destination.name")
	attrPartition     = attribute.Key("messaging.destination.partition.id")
	attrGroup         = attribute.Key("messaging.consumer.group.name")
	attrMessageID     = attribute.Key("messaging.message.id")
	attrBatch         = attribute.Key("messaging.batch.message_count")
	attrErrorType     = attribute.Key("error.type")
	attrStatus        = attribute.Key("http.response.status_code")
)

// systemHoldfast is where an event is that is written and not published yet, or handled without a broker. Else the publisher or the source
// says which system it is.
const systemHoldfast = "holdfast"

// format is how an event's headers carry its trace: traceparent and tracestate, of W3C Trace Context.
var format = propagation.TraceContext{}

// Traced returns the events with the trace of ctx in their headers, for outbox.Queue, which has no context. Events that have a
// traceparent keep it. The given events stay as they are. Without a span in ctx it returns them.
func Traced(ctx context.Context, events ...holdfast.Event) []holdfast.Event {
	headers := headersOf(ctx)
	if headers == nil {
		return events
	}
	traced := make([]holdfast.Event, len(events))
	for i, e := range events {
		if e.Headers["traceparent"] == "" {
			merged := maps.Clone(headers)
			maps.Copy(merged, e.Headers)
			e.Headers = merged
		}
		traced[i] = e
	}
	return traced
}

// headersOf are the headers that carry the span of ctx, nil if it has none.
func headersOf(ctx context.Context) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	headers := propagation.MapCarrier{}
	format.Inject(ctx, headers)
	return headers
}

// joined are the headers that carry a span, with those that another observer gave beside them.
func joined(headers, more map[string]string) map[string]string {
	if len(more) == 0 {
		return headers
	}
	all := maps.Clone(more)
	maps.Copy(all, headers)
	return all
}

// producerOf is the span that wrote an event; it is not valid if the event does not say.
func producerOf(e *holdfast.Event) trace.SpanContext {
	if e.Headers["traceparent"] == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(format.Extract(context.Background(), propagation.MapCarrier(e.Headers)))
}

// callerOf is the span that sent a request, by its headers.
func callerOf(h http.Header) trace.SpanContext {
	return trace.SpanContextFromContext(format.Extract(context.Background(), propagation.HeaderCarrier(h)))
}
