package holdfastotel

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// Outbox is metrics.Outbox: the Observer of an Outbox. An error means that an instrument could not be made.
func Outbox(meter metric.Meter) (outbox.Observer, error) { return metrics.Outbox(Meter(meter)) }

// Relay is metrics.Relay: the Observer of a Relay. An error means that an instrument could not be made.
func Relay(meter metric.Meter) (relay.Observer, error) { return metrics.Relay(Meter(meter)) }

// Inbox is metrics.Inbox: the Observer of an Inbox. All its metrics say which consumer they are of. An error means that an instrument
// could not be made.
func Inbox(meter metric.Meter, consumer string) (inbox.Observer, error) {
	return metrics.Inbox(Meter(meter), consumer)
}

// Webhook is metrics.Webhook: the Observer of webhook endpoints. An error means that an instrument could not be made.
func Webhook(meter metric.Meter) (webhook.Observer, error) { return metrics.Webhook(Meter(meter)) }

// Span attributes of guarded requests. The key is the same hash as in the log.
const (
	attrKey     = attribute.Key("idempotency_key")
	attrAttempt = attribute.Key("attempt")
	attrOutcome = attribute.Key("outcome")
)

// Idempotency is metrics.Idempotency: the Observer of a Guard. It also sets attributes on the span in a request's context, if there is
// one. An error means that an instrument could not be made.
func Idempotency(meter metric.Meter) (idempotency.Observer, error) {
	o, err := metrics.Idempotency(Meter(meter))
	if err != nil {
		return o, err
	}
	measure := o.OnOutcome
	o.OnOutcome = func(ctx context.Context, out idempotency.Outcome) {
		measure(ctx, out)
		describe(trace.SpanFromContext(ctx), out)
	}
	return o, nil
}

// Retry is metrics.Retry: the Observer of a retry.Transport. It also adds an event to the span in a request's context, if there is
// one, with the number of the attempt, its delay and its result. An error means that an instrument could not be made.
func Retry(meter metric.Meter) (retry.Observer, error) {
	o, err := metrics.Retry(Meter(meter))
	if err != nil {
		return o, err
	}
	measure := o.OnAttempt
	o.OnAttempt = func(a retry.Attempt) {
		measure(a)
		if span := trace.SpanFromContext(a.Request.Context()); span.IsRecording() {
			span.AddEvent("http attempt", trace.WithAttributes(attribute.Int("attempt", a.Number), attribute.Int64("delay_ms", a.Delay.Milliseconds()),
				attribute.Int("status", a.Status), attribute.String("met", metrics.Met(a))))
		}
	}
	return o, nil
}

// Database is metrics.ObserveDatabase: gauges of what is not published, stored, parked, a dead letter, and of the sizes of tables. The
// database is queried at most once in DatabaseConfig.Interval, however often metrics are collected. Call stop before you close the
// pool.
func Database(meter metric.Meter, d *metrics.Database) (stop func() error, err error) {
	return metrics.ObserveDatabase(Meter(meter), d)
}

// Lag is metrics.ObserveLag: how far consumers are from the ends of their partitions. kafkago.Offsets has the ends. Call stop before you
// close the pool.
func Lag(meter metric.Meter, d *metrics.Database, ends metrics.Ends) (stop func() error, err error) {
	return metrics.ObserveLag(Meter(meter), d, ends)
}

// Pool is metrics.ObservePool: the connections of a pool, and the waits for them. Call stop before you close the pool.
func Pool(meter metric.Meter, name string, pool *pgxpool.Pool) (stop func() error, err error) {
	return metrics.ObservePool(Meter(meter), name, pool)
}

// within is the context of a measurement, in which the span is.
func within(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
