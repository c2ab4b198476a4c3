package holdfastotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/webhook"
)

// Inbox makes the Observer of an Inbox. It counts events by outcome, dead letters and conflicts, rows that retention
// removes, abandoned handlers, leases and partitions lost to others, repeated reads, and errors that are retried.
// Histograms have the duration of an event and the delays before retries. All of them have the label consumer. An error
// means that an instrument could not be made.
func Inbox(meter metric.Meter, consumer string) (inbox.Observer, error) {
	m := maker{meter: meter}
	events := m.counter("holdfast.inbox.events", "{event}", "Events whose outcome is durable")
	took := m.histogram("holdfast.inbox.duration", "How long an event took, until its commit", seconds)
	delays := m.histogram("holdfast.inbox.retry.delay", "How long a failed event waits for its next attempt", append(seconds, 300, 1800, 3600))
	dead := m.counter("holdfast.inbox.dead", "{event}", "Events that became dead letters")
	conflicts := m.counter("holdfast.inbox.conflicts", "{event}", "Events whose id came a second time with another payload")
	full := m.counter("holdfast.inbox.full", "{event}", "Events refused at capacity; every attempt counts")
	held := m.counter("holdfast.inbox.held", "{look}", "Looks at a partition that is held because its log does not hold the next offset")
	erased := m.counter("holdfast.inbox.erased", "{event}", "Events that their handler did not get, because the key of their payload was erased")
	unknown := m.counter("holdfast.inbox.unknown.types", "{type}", "Topics and types whose events are skipped because no node handles them; the first event of each counts")
	cleaned := m.counter("holdfast.inbox.cleaned.rows", "{row}", "Rows that retention removed")
	cleaning := m.histogram("holdfast.inbox.cleaned", "How long a round of retention took", seconds)
	hung := m.counter("holdfast.inbox.hung", "{handler}", "Handlers that did not return in time and were abandoned")
	leases := m.counter("holdfast.inbox.leases.lost", "{event}", "Stored events that a worker finished after losing their lease: rolled back")
	fenced := m.counter("holdfast.inbox.fenced", "{partition}", "Partitions that turned out to belong to another node")
	revoked := m.counter("holdfast.inbox.revoked", "{partition}", "Partitions that this node released")
	assigned := m.counter("holdfast.inbox.assigned", "{partition}", "Partitions that were assigned to this node")
	reread := m.counter("holdfast.inbox.reread", "{offset}", "Offsets below the position that were read again")
	errors := m.counter("holdfast.inbox.errors", "{error}", "Errors of the database or the broker that are retried")
	if m.err != nil {
		return inbox.Observer{}, m.err
	}
	ctx := context.Background()
	who := attribute.String("consumer", consumer)
	by := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, who)...))
	}
	all := by()
	return inbox.Observer{
		OnReceive: func(r inbox.Received) {
			outcome := by(attribute.String("outcome", string(r.Outcome)))
			ctx := within(r.Context)
			events.Add(ctx, 1, outcome)
			took.Record(ctx, r.Took.Seconds(), outcome)
		},
		OnRetry:       func(r inbox.Retried) { delays.Record(within(r.Context), r.Delay.Seconds(), all) },
		OnDead:        func(d inbox.DeadLettered) { dead.Add(within(d.Context), 1, all) },
		OnConflict:    func(holdfast.Event) { conflicts.Add(ctx, 1, all) },
		OnFull:        func(holdfast.Event, error) { full.Add(ctx, 1, all) },
		OnHeld:        func(inbox.Assignment, error) { held.Add(ctx, 1, all) },
		OnErased:      func(holdfast.Event) { erased.Add(ctx, 1, all) },
		OnUnknownType: func(_, _ string) { unknown.Add(ctx, 1, all) },
		OnHungHandler: func(holdfast.Event, int) { hung.Add(ctx, 1, all) },
		OnLeaseLost:   func(holdfast.Event) { leases.Add(ctx, 1, all) },
		OnFenced:      func(inbox.Assignment) { fenced.Add(ctx, 1, all) },
		OnRevoked:     func(_ inbox.Assignment, clean bool) { revoked.Add(ctx, 1, by(attribute.Bool("clean", clean))) },
		OnAssigned:    func(inbox.Assignment, int64) { assigned.Add(ctx, 1, all) },
		OnReread:      func(_ inbox.Assignment, offsets int64) { reread.Add(ctx, offsets, all) },
		OnError:       func(error) { errors.Add(ctx, 1, all) },
		OnCleaned: func(rows int, d time.Duration) {
			cleaned.Add(ctx, int64(rows), all)
			cleaning.Record(ctx, d.Seconds(), all)
		},
	}, nil
}

// within is the context of a measurement, in which an exemplar finds the span.
func within(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// Webhook makes the Observer of webhook endpoints. It counts refused requests by source and reason. It counts
// deliveries by source, outcome, status and the secret that matched, and has a histogram of their duration. An error
// means that an instrument could not be made.
func Webhook(meter metric.Meter) (webhook.Observer, error) {
	m := maker{meter: meter}
	refused := m.counter("holdfast.webhook.refused", "{request}", "Requests that were refused as no delivery of the provider")
	deliveries := m.counter("holdfast.webhook.deliveries", "{delivery}", "Deliveries that were answered")
	took := m.histogram("holdfast.webhook", "How long a delivery took, from the first byte of its body", seconds)
	if m.err != nil {
		return webhook.Observer{}, m.err
	}
	return webhook.Observer{
		OnRefused: func(r webhook.Refused) {
			refused.Add(within(r.Context), 1, metric.WithAttributes(attribute.String("source", r.Source), attribute.String("reason", string(r.Reason))))
		},
		OnDelivery: func(a webhook.Answered) {
			ctx, source := within(a.Context), attribute.String("source", a.Source)
			deliveries.Add(ctx, 1, metric.WithAttributes(source, attribute.String("outcome", string(a.Outcome)), attribute.Int("status", a.Status),
				attribute.Int("secret", a.Delivery.Secret)))
			took.Record(ctx, a.Took.Seconds(), metric.WithAttributes(source))
		},
	}, nil
}
