package holdfastotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// Backlog makes gauges of events that are written but not published. They show lanes with unread events, the age of the
// oldest event, events that wait in relays and for how long, and lanes with overdue scheduled events. It is for
// a process whose role may not read what Database does: the names are the same, so use one of the two. Each collection
// queries the database once, and every process with these gauges reports the same values: alert on the age. Unregister
// the Registration before you close the pool. An error means that an instrument could not be made.
func Backlog(meter metric.Meter, r *relay.Relay) (metric.Registration, error) {
	m := maker{meter: meter}
	lanes := m.gauge("holdfast.backlog.lanes", "{lane}", "Lanes with events that no relay has published")
	oldest := m.age("holdfast.backlog.age", "Age of the oldest event that no relay has published")
	waiting := m.gauge("holdfast.backlog.waiting", "{event}", "Events that wait in relays")
	waitingFor := m.age("holdfast.backlog.waiting.age", "How long the oldest of them has waited")
	scheduled := m.gauge("holdfast.backlog.scheduled", "{lane}", "Lanes with scheduled events that are due and not in the log")
	return m.observe(func(ctx context.Context, o metric.Observer) error {
		b, err := r.Backlog(ctx)
		if err != nil {
			return fmt.Errorf("read backlog: %w", err)
		}
		o.ObserveInt64(lanes, int64(b.Lanes))
		o.ObserveFloat64(oldest, b.Oldest.Seconds())
		o.ObserveInt64(waiting, int64(b.Waiting))
		o.ObserveFloat64(waitingFor, b.OldestWaiting.Seconds())
		o.ObserveInt64(scheduled, int64(b.Scheduled))
		return nil
	}, lanes, oldest, waiting, waitingFor, scheduled)
}

// Waiting makes gauges of the events that wait in a consumer: events, keys, the age of the oldest, and events of types
// that no running node handles. Each collection queries the database once, and every node of the consumer reports the
// same values: alert on the age. All of them have the label consumer. Unregister the Registration before you close the
// pool. An error means that an instrument could not be made.
func Waiting(meter metric.Meter, consumer string, in *inbox.Inbox) (metric.Registration, error) {
	m := maker{meter: meter}
	events := m.gauge("holdfast.waiting.events", "{event}", "Events that wait in a consumer")
	keys := m.gauge("holdfast.waiting.keys", "{key}", "Topics and keys that wait")
	oldest := m.age("holdfast.waiting.age", "How long the oldest of them has waited")
	undeclared := m.gauge("holdfast.waiting.undeclared", "{event}", "Waiting events of types that no running node of the consumer handles")
	who := metric.WithAttributeSet(attribute.NewSet(attribute.String("consumer", consumer)))
	return m.observe(func(ctx context.Context, o metric.Observer) error {
		w, err := in.Waiting(ctx)
		if err != nil {
			return fmt.Errorf("read waiting events of %s: %w", consumer, err)
		}
		o.ObserveInt64(events, int64(w.Events), who)
		o.ObserveInt64(keys, int64(w.Keys), who)
		o.ObserveFloat64(oldest, w.Oldest.Seconds(), who)
		o.ObserveInt64(undeclared, int64(w.Undeclared), who)
		return nil
	}, events, keys, oldest, undeclared)
}

func (m *maker) gauge(name, unit, description string) metric.Int64ObservableGauge {
	g, err := m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	m.note(name, err)
	return g
}

func (m *maker) age(name, description string) metric.Float64ObservableGauge {
	g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	m.note(name, err)
	return g
}

// observe registers read for each collection.
func (m *maker) observe(read metric.Callback, instruments ...metric.Observable) (metric.Registration, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.meter.RegisterCallback(read, instruments...)
}

// maker makes instruments, and remembers the first error.
type maker struct {
	meter metric.Meter
	err   error
}

func (m *maker) note(name string, err error) {
	if err != nil && m.err == nil {
		m.err = fmt.Errorf("make instrument %s: %w", name, err)
	}
}
