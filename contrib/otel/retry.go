package holdfastotel

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/retry"
)

// Retry makes the Observer of a retry.Transport: a counter of attempts by what they met, and a histogram of the delays
// before repeated ones. It also adds an event to the span that is in a request's context, where there is one, with the
// number of the attempt, its delay and what it met. An error: an instrument could not be made.
func Retry(meter metric.Meter) (retry.Observer, error) {
	m := maker{meter: meter}
	attempts := m.counter("holdfast.retry.attempts", "{attempt}", "Attempts at HTTP requests")
	delays := m.histogram("holdfast.retry.delay", "How long was waited before an attempt that repeats another", seconds)
	if m.err != nil {
		return retry.Observer{}, m.err
	}
	return retry.Observer{OnAttempt: func(a retry.Attempt) {
		ctx := a.Request.Context()
		attempts.Add(ctx, 1, metric.WithAttributes(attribute.String("met", met(a)), attribute.Bool("repeat", a.Number > 1)))
		if a.Number > 1 {
			delays.Record(ctx, a.Delay.Seconds())
		}
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			span.AddEvent("http attempt", trace.WithAttributes(attribute.Int("attempt", a.Number), attribute.Int64("delay_ms", a.Delay.Milliseconds()),
				attribute.Int("status", a.Status), attribute.String("met", met(a))))
		}
	}}, nil
}

// met is what an attempt met: "2xx" to "5xx", or "error" where there was no answer.
func met(a retry.Attempt) string {
	if classes := []string{"1xx", "2xx", "3xx", "4xx", "5xx"}; a.Err == nil && a.Status >= 100 && a.Status <= 599 {
		return classes[a.Status/100-1]
	}
	return "error"
}
