package holdfastotel

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// IdempotencySpans adds a span to a guard's Observer for each guarded request: "request" and the operation. The handler's context has
// it. It is below the span in the request's context; if there is none, it continues the trace of the request's header traceparent.
// Its attributes are outcome, idempotency_key (a hash), attempt and the answer's status. Functions that o already has are called too.
func IdempotencySpans(tracer trace.Tracer, o idempotency.Observer) idempotency.Observer {
	before, outcome := o.OnRequest, o.OnOutcome
	o.OnRequest = func(ctx context.Context, r *http.Request, route string, completed bool) (context.Context, func()) {
		ended := func() {}
		if before != nil {
			ctx, ended = before(ctx, r, route, completed)
		}
		name, kind := "request", trace.SpanKindInternal
		if route != "" {
			name += " " + route
		}
		if !trace.SpanContextFromContext(ctx).IsValid() {
			if caller := callerOf(r.Header); caller.IsValid() {
				ctx = trace.ContextWithRemoteSpanContext(ctx, caller)
			}
			if !completed {
				kind = trace.SpanKindServer
			}
		}
		ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(kind))
		return ctx, func() {
			span.End()
			ended()
		}
	}
	o.OnOutcome = func(ctx context.Context, out idempotency.Outcome) {
		span := trace.SpanFromContext(ctx)
		describe(span, out)
		describeAnswer(span, out)
		if outcome != nil {
			outcome(ctx, out)
		}
	}
	return o
}

// describe sets what became of a request on its span.
func describe(span trace.Span, o idempotency.Outcome) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attrOutcome.String(string(o.Result)))
	if o.KeyHash != "" {
		span.SetAttributes(attrKey.String(o.KeyHash))
	}
	if o.Attempt > 0 {
		span.SetAttributes(attrAttempt.Int(o.Attempt))
	}
}

// describeAnswer sets how a request was answered on the span that IdempotencySpans has made.
func describeAnswer(span trace.Span, o idempotency.Outcome) {
	if o.Status > 0 {
		span.SetAttributes(attrStatus.Int(o.Status))
	}
	if o.ErrorCode != "" {
		span.SetAttributes(attrErrorCode.String(o.ErrorCode))
	}
	if o.Status >= http.StatusInternalServerError || o.Status == 0 {
		span.SetStatus(codes.Error, string(o.Result))
	}
}

// IdempotencyAttributes is for programs that have a span for each request already: it adds to a guard's Observer that outcome,
// idempotency_key (a hash) and attempt are set on the span in the request's context. A function that o already has is called too.
func IdempotencyAttributes(o idempotency.Observer) idempotency.Observer {
	outcome := o.OnOutcome
	o.OnOutcome = func(ctx context.Context, out idempotency.Outcome) {
		describe(trace.SpanFromContext(ctx), out)
		if outcome != nil {
			outcome(ctx, out)
		}
	}
	return o
}

// RetryEvents adds to a transport's Observer an event for each attempt, "http attempt", on the span in the request's context: the
// number of the attempt, its delay, and the status of its answer, 0 if there was none. A function that o already has is called too.
func RetryEvents(o retry.Observer) retry.Observer {
	before := o.OnAttempt
	o.OnAttempt = func(a retry.Attempt) {
		if span := trace.SpanFromContext(a.Request.Context()); span.IsRecording() {
			span.AddEvent("http attempt", trace.WithAttributes(attribute.Int("attempt", a.Number),
				attribute.Int64("delay_ms", a.Delay.Milliseconds()), attribute.Int("status", a.Status)))
		}
		if before != nil {
			before(a)
		}
	}
	return o
}

// WebhookSpans adds a span to an endpoint's Observer for each request: "webhook" and the source. The inbox's handler has it in its
// context, and the event carries it in its headers, so that retries of a stored event are in its trace. It is below the span in the
// request's context. Without one it begins a trace, with a link to that of the sender: who may send webhooks does not choose our
// traces. Functions that o already has are called too; the span's headers win over those that they give.
func WebhookSpans(tracer trace.Tracer, o webhook.Observer) webhook.Observer {
	before, refused, delivered := o.OnRequest, o.OnRefused, o.OnDelivery
	o.OnRequest = func(ctx context.Context, source string, r *http.Request) (context.Context, map[string]string, func()) {
		var more map[string]string
		ended := func() {}
		if before != nil {
			ctx, more, ended = before(ctx, source, r)
		}
		options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(attrSource.String(source))}
		if !trace.SpanContextFromContext(ctx).IsValid() {
			options[0] = trace.WithSpanKind(trace.SpanKindServer)
			if sender := callerOf(r.Header); sender.IsValid() {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: sender}))
			}
		}
		ctx, span := tracer.Start(ctx, "webhook "+source, options...)
		return ctx, joined(headersOf(ctx), more), func() {
			span.End()
			ended()
		}
	}
	o.OnRefused = func(r webhook.Refused) {
		span := trace.SpanFromContext(within(r.Context))
		span.SetAttributes(attrStatus.Int(r.Status), attribute.String("reason", string(r.Reason)))
		if refused != nil {
			refused(r)
		}
	}
	o.OnDelivery = func(a webhook.Answered) {
		span := trace.SpanFromContext(within(a.Context))
		span.SetAttributes(attrStatus.Int(a.Status), attrOutcome.String(string(a.Outcome)), attrEventID.String(a.EventID), attrEventType.String(a.Delivery.Type))
		if a.CorrelationID != "" {
			span.SetAttributes(attrCorrelation.String(a.CorrelationID))
		}
		fail(span, a.Err)
		if delivered != nil {
			delivered(a)
		}
	}
	return o
}

// within is the context of a delivery, in which the span is.
func within(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
