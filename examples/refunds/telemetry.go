package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/webhook"
)

// telemetry reports what becomes of requests: a line of the log, a counter and the attributes of a span for each. Keys are
// reported as hashes, and never as labels of a counter.
type telemetry struct {
	log                         *slog.Logger
	tracer                      trace.Tracer
	created, replays, conflicts metric.Int64Counter
}

func newTelemetry(log *slog.Logger, meters metric.MeterProvider, tracers trace.TracerProvider) (*telemetry, error) {
	t := &telemetry{log: log, tracer: tracers.Tracer("refunds")}
	meter := meters.Meter("refunds")
	var problems []error
	counter := func(name, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithDescription(description))
		problems = append(problems, err)
		return c
	}
	t.created = counter("idempotent.created", "requests whose answer was stored")
	t.replays = counter("idempotent.replayed", "requests that got a stored answer")
	t.conflicts = counter("idempotent.conflict", "requests under the key of another request")
	return t, errors.Join(problems...)
}

func (t *telemetry) observer() idempotency.Observer {
	return idempotency.Observer{OnOutcome: t.outcome}
}

// outcome reports a request to one of the guarded routes.
func (t *telemetry) outcome(ctx context.Context, o idempotency.Outcome) {
	t.log.InfoContext(ctx, "idempotent request", "operation", o.Operation, "idempotency_key", o.KeyHash, "outcome", string(o.Result), "attempt", o.Attempt, "status", o.Status, "error_code", o.ErrorCode)
	operation := metric.WithAttributes(attribute.String("operation", o.Operation))
	switch o.Result {
	case idempotency.Created:
		t.created.Add(ctx, 1, operation)
	case idempotency.Replayed:
		t.replays.Add(ctx, 1, operation)
	case idempotency.Conflict:
		t.conflicts.Add(ctx, 1, operation)
	}
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("idempotency_key", o.KeyHash), attribute.String("outcome", string(o.Result)))
}

// hooks reports the gateway's webhooks.
func (t *telemetry) hooks() webhook.Observer {
	return webhook.Observer{OnDelivery: func(a webhook.Answered) {
		from, to := a.Outcome.States()
		t.log.InfoContext(a.Context, "webhook", "event_id", a.EventID, "outcome", string(a.Outcome), "status", a.Status,
			"from_state", from, "to_state", to, "correlation_id", a.CorrelationID)
	}}
}

// spans makes each request a span, as part of the caller's trace.
func (t *telemetry) spans(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, r.Pattern, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(keyAttribute(r)))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// keyAttribute names a request's key, which is never reported itself.
func keyAttribute(r *http.Request) attribute.KeyValue {
	return attribute.String("idempotency_key", idempotency.Deterministic(r.Header.Get("Idempotency-Key"))[:16])
}

// attempt says which start of its handler a request is.
func attempt(ctx context.Context) {
	if info, guarded := idempotency.InfoOf(ctx); guarded {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Int("attempt", info.Attempt))
	}
}

type attemptsKey struct{}

// attempts makes each attempt at a request a span, with its number: it is the base of the client's transport.
type attempts struct {
	tracer trace.Tracer
	base   http.RoundTripper
}

func (a attempts) RoundTrip(r *http.Request) (*http.Response, error) {
	n := r.Context().Value(attemptsKey{}).(*atomic.Int64)
	ctx, span := a.tracer.Start(r.Context(), "attempt", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(keyAttribute(r), attribute.Int64("attempt", n.Add(1))))
	defer span.End()
	r = r.Clone(ctx)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	res, err := a.base.RoundTrip(r)
	if err != nil {
		span.RecordError(err)
	} else {
		span.SetAttributes(attribute.Int("status", res.StatusCode))
	}
	return res, err
}
