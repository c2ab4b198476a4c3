package holdfastotel

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// Span attributes of handled events. They have the names that the log has.
const (
	SpanEventID     = attribute.Key("event_id")
	SpanFromState   = attribute.Key("from_state")
	SpanToState     = attribute.Key("to_state")
	SpanCorrelation = attribute.Key("correlation_id")
	SpanErrorCode   = attribute.Key("error_code")
)

// Spans adds a span for each run of a handler to an inbox's Observer. The handler's context has the span. It is called
// "handle" and the type, and its attributes are event_id, source, topic, consumer, attempt, from_state, to_state,
// correlation_id and, after a failure, error_code. It is linked to the producer's span if the event has the header
// traceparent. It does not continue the producer's trace, because a retry may come days later.
//
// The span ends with the handler, before the commit: to_state is what a commit makes of it. After a failure the state is
// unchanged; the log says whether the event is then stored or a dead letter. A batch has one span, with the id and the
// link of each of its events. An OnHandle that o already has is replaced.
func Spans(tracer trace.Tracer, o inbox.Observer) inbox.Observer {
	o.OnHandle = func(ctx context.Context, h inbox.Handling) (context.Context, func(error)) {
		first := h.Events[0]
		attributes := []attribute.KeyValue{
			attribute.String("consumer", h.Consumer), attribute.String("source", first.Source), attribute.String("topic", first.Topic),
			SpanAttempt.Int(h.Attempt), SpanFromState.String(h.FromState),
		}
		if len(h.Events) == 1 {
			attributes = append(attributes, SpanEventID.String(first.ID))
			if h.CorrelationID != "" {
				attributes = append(attributes, SpanCorrelation.String(h.CorrelationID))
			}
		} else {
			ids := make([]string, len(h.Events))
			for i, e := range h.Events {
				ids[i] = e.ID
			}
			attributes = append(attributes, SpanEventID.StringSlice(ids))
		}
		var links []trace.Link
		for _, e := range h.Events {
			if producer := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(maps.Clone(e.Headers)))); producer.IsValid() {
				links = append(links, trace.Link{SpanContext: producer})
			}
		}
		ctx, span := tracer.Start(ctx, "handle "+first.Type, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributes...), trace.WithLinks(links...))
		return ctx, func(err error) {
			if err == nil {
				span.SetAttributes(SpanToState.String(inbox.StateHandled))
			} else {
				class := string(retry.Classify(err))
				span.SetAttributes(SpanToState.String(h.FromState), SpanErrorCode.String(class))
				span.SetStatus(codes.Error, class)
			}
			span.End()
		}
	}
	return o
}
