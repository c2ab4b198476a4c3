package holdfastotel

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/idempotency"
)

// Span attributes of guarded requests. The key is the same hash as in the log.
const (
	SpanKey     = attribute.Key("idempotency_key")
	SpanAttempt = attribute.Key("attempt")
	SpanOutcome = attribute.Key("outcome")
)

// counters maps each result to its counter. The names are those of package idempotency.
var counters = map[idempotency.Result]struct{ name, description string }{
	idempotency.Created:     {"idempotent.created", "Requests whose handler ran and whose answer is kept"},
	idempotency.Replayed:    {"idempotent.replayed", "Requests that got the answer of an earlier one"},
	idempotency.Conflict:    {"idempotent.conflict", "Requests whose key a different request had used"},
	idempotency.InProgress:  {"idempotent.in_progress", "Requests whose key another request was using"},
	idempotency.Forgotten:   {"idempotent.forgotten", "Requests whose handler ran, with nothing kept"},
	idempotency.Lost:        {"idempotent.lost", "Requests whose lease another request took over while their handler ran"},
	idempotency.Bypassed:    {"idempotent.bypassed", "Requests without a key, on routes where keys are optional"},
	idempotency.Refused:     {"idempotent.refused", "Requests without a valid key, a principal or a readable body"},
	idempotency.Unavailable: {"idempotent.unavailable", "Requests that were not carried out because the database could not be reached"},
	idempotency.Unknown:     {"idempotent.unknown", "Requests that may or may not have been carried out"},
	idempotency.Unusable:    {"idempotent.unusable", "Requests whose stored answer cannot be read or trusted"},
}

// MaxOperations is the maximum number of values of the operation label. Further operations are counted as "other".
const MaxOperations = 200

// Idempotency makes the Observer of a Guard. By operation, it has a counter for each result and a histogram of
// durations. It also counts expired keys, answers too long to store, requests beyond Config.MaxKeys, and removed keys. It sets attributes on the span
// in a request's context, if there is one. An error means that an instrument could not be made.
//
// The operation is the route's or the router's pattern, "unnamed" if there is none.
func Idempotency(meter metric.Meter) (idempotency.Observer, error) {
	m := maker{meter: meter}
	results := map[idempotency.Result]metric.Int64Counter{}
	for result, c := range counters {
		results[result] = m.counter(c.name, "{request}", c.description)
	}
	other := m.counter("idempotent.other", "{request}", "Requests with a result that this version does not know")
	expired := m.counter("idempotent.expired", "{request}", "Requests whose key had an answer that had expired")
	omitted := m.counter("idempotent.omitted", "{request}", "Requests whose answer's body is too long to store, and their repeats")
	limited := m.counter("idempotent.limited", "{request}", "Requests refused because their principal has too many keys")
	duration := m.histogram("idempotent.duration", "How long guarded requests took", seconds)
	abandoned := m.counter("idempotent.abandoned", "{request}", "Requests that were begun, have no answer, and will not be completed")
	cleaned := m.counter("idempotent.cleaned", "{key}", "Expired keys that were removed")
	cleaning := m.histogram("idempotent.cleaning.duration", "How long a round of removing expired keys took", seconds)
	if m.err != nil {
		return idempotency.Observer{}, m.err
	}
	operations := &bounded{most: MaxOperations, none: "unnamed", rest: "other"}
	return idempotency.Observer{
		OnOutcome: func(ctx context.Context, o idempotency.Outcome) {
			operation := attribute.String("operation", operations.name(o.Route))
			by := metric.WithAttributeSet(attribute.NewSet(operation))
			counter, known := results[o.Result]
			if !known {
				counter = other
			}
			counter.Add(ctx, 1, by)
			if o.Expired {
				expired.Add(ctx, 1, by)
			}
			if o.Omitted {
				omitted.Add(ctx, 1, by)
			}
			if o.Code == idempotency.CodeTooManyKeys {
				limited.Add(ctx, 1, by)
			}
			duration.Record(ctx, o.Took.Seconds(), metric.WithAttributeSet(attribute.NewSet(operation, SpanOutcome.String(string(o.Result)))))
			describe(trace.SpanFromContext(ctx), o)
		},
		OnAbandoned: func(a idempotency.Abandoned) {
			abandoned.Add(context.Background(), 1, metric.WithAttributeSet(attribute.NewSet(attribute.String("operation", operations.name(a.Operation)))))
		},
		OnCleaned: func(keys int, took time.Duration) {
			cleaned.Add(context.Background(), int64(keys))
			cleaning.Record(context.Background(), took.Seconds())
		},
	}, nil
}

// seconds are the bucket bounds of the histograms.
var seconds = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// maker makes instruments, and remembers the first error.
type maker struct {
	meter metric.Meter
	err   error
}

func (m *maker) counter(name, unit, description string) metric.Int64Counter {
	c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.note(name, err)
	return c
}

func (m *maker) histogram(name, description string, bounds []float64) metric.Float64Histogram {
	h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
	m.note(name, err)
	return h
}

func (m *maker) note(name string, err error) {
	if err != nil && m.err == nil {
		m.err = fmt.Errorf("make instrument %s: %w", name, err)
	}
}
