package holdfastotel

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/retry"
)

// Retry makes the Observer of a retry.Transport. It counts attempts by result, and has a histogram of the delays before
// repeats. It also adds an event to the span in a request's context, if there is one, with the number of the attempt,
// its delay and its result. An error means that an instrument could not be made.
func Retry(meter metric.Meter) (retry.Observer, error) {
	m := maker{meter: meter}
	attempts := m.counter("holdfast.retry.attempts", "{attempt}", "Attempts at HTTP requests")
	delays := m.histogram("holdfast.retry.delay", "How long the transport waited before a repeated attempt", seconds)
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

// met is the result of an attempt: "2xx" to "5xx", or "error" if there was no answer.
func met(a retry.Attempt) string {
	if classes := []string{"1xx", "2xx", "3xx", "4xx", "5xx"}; a.Err == nil && a.Status >= 100 && a.Status <= 599 {
		return classes[a.Status/100-1]
	}
	return "error"
}
