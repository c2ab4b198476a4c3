package holdfastotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// MaxTopics is the maximum number of values of the topic label. Further topics are counted as "other". A quarter of them are
// for topics to which nothing was published.
const MaxTopics = 200

// Relay makes the Observer of a Relay. It counts events that were published, parked, published from their queue and
// given up, by topic. It counts lanes that were claimed, released and lost, waits by reason, scheduled events that
// became due, and segments that were checked, by result. A histogram has the time to save cursors. An error means that
// an instrument could not be made.
func Relay(meter metric.Meter) (relay.Observer, error) {
	m := maker{meter: meter}
	published := m.counter("holdfast.relay.published", "{event}", "Events that the broker acknowledged, repeats included")
	parked := m.counter("holdfast.relay.parked", "{event}", "Events that were parked in the queue of their key")
	unparked := m.counter("holdfast.relay.unparked", "{event}", "Events that were published from the queue of their key")
	dead := m.counter("holdfast.relay.dead", "{event}", "Events that became dead letters")
	claimed := m.counter("holdfast.relay.claimed", "{lane}", "Lanes that were claimed")
	released := m.counter("holdfast.relay.released", "{lane}", "Lanes that were released in an orderly way")
	lost := m.counter("holdfast.relay.lost", "{lane}", "Lanes that were lost to another relay, or dropped to be claimed again")
	held := m.counter("holdfast.relay.held", "{wait}", "Waits of a lane before it tries again")
	saving := m.histogram("holdfast.relay.saving", "How long a save of cursors took", seconds)
	moved := m.counter("holdfast.relay.moved", "{event}", "Scheduled events that became due")
	reclaimed := m.counter("holdfast.relay.reclaimed", "{segment}", "Segments of the log that were checked, by result")
	if m.err != nil {
		return relay.Observer{}, m.err
	}
	ctx := context.Background()
	topics := newTopicNames()
	ofPublished := func(topic string) attribute.KeyValue { return attribute.String("topic", topics.published.name(topic)) }
	ofTroubled := func(topic string) attribute.KeyValue { return attribute.String("topic", topics.inTrouble(topic)) }
	by := func(labels ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(labels...))
	}
	return relay.Observer{
		OnPublished: func(p relay.Published) {
			counts := map[string]int64{}
			for i := range p.Events {
				counts[p.Events[i].Topic]++
			}
			for name, n := range counts {
				published.Add(ctx, n, by(ofPublished(name)))
			}
		},
		OnParked: func(p relay.Parked) {
			parked.Add(ctx, 1, by(ofTroubled(p.Event.Topic), attribute.String("why", p.Why)))
		},
		OnUnparked: func(u relay.Unparked) { unparked.Add(ctx, 1, by(ofPublished(u.Event.Topic))) },
		OnDead:     func(d relay.DeadLettered) { dead.Add(ctx, 1, by(ofTroubled(d.Event.Topic))) },
		OnClaimed:  func(relay.Claimed) { claimed.Add(ctx, 1) },
		OnReleased: func(relay.Released) { released.Add(ctx, 1) },
		OnLost:     func(relay.Lost) { lost.Add(ctx, 1) },
		OnHeld: func(h relay.Held) {
			held.Add(ctx, 1, by(attribute.String("fault", string(h.Fault))))
		},
		OnSaved:     func(s relay.Saved) { saving.Record(ctx, s.Took.Seconds()) },
		OnMoved:     func(m relay.Moved) { moved.Add(ctx, int64(m.Events)) },
		OnReclaimed: func(r relay.Reclaimed) { reclaimed.Add(ctx, 1, by(attribute.String("result", r.Result))) },
	}, nil
}

// Backlog makes gauges of events that are written but not published. They show lanes with unread events, the age of the
// oldest event, parked events and how long they have waited, and lanes with overdue scheduled events. Each collection
// queries the database once, and every process with these gauges reports the same values: alert on the age. Unregister
// the Registration before you close the pool. An error means that an instrument could not be made.
func Backlog(meter metric.Meter, r *relay.Relay) (metric.Registration, error) {
	m := maker{meter: meter}
	lanes := m.gauge("holdfast.backlog.lanes", "{lane}", "Lanes with events that no relay has published")
	oldest := m.age("holdfast.backlog.age", "Age of the oldest event that no relay has published")
	parked := m.gauge("holdfast.backlog.parked", "{event}", "Events that wait in the queues of their keys")
	parkedFor := m.age("holdfast.backlog.parked.age", "How long the oldest parked event has waited")
	scheduled := m.gauge("holdfast.backlog.scheduled", "{lane}", "Lanes with scheduled events that are due and not in the log")
	return m.observe(func(ctx context.Context, o metric.Observer) error {
		b, err := r.Backlog(ctx)
		if err != nil {
			return fmt.Errorf("read backlog: %w", err)
		}
		o.ObserveInt64(lanes, int64(b.Lanes))
		o.ObserveFloat64(oldest, b.Oldest.Seconds())
		o.ObserveInt64(parked, int64(b.Parked))
		o.ObserveFloat64(parkedFor, b.OldestParked.Seconds())
		o.ObserveInt64(scheduled, int64(b.Scheduled))
		return nil
	}, lanes, oldest, parked, parkedFor, scheduled)
}

// Waiting makes gauges of the events stored for a consumer: events, keys, the age of the oldest, and events of types
// that no running node handles. Each collection queries the database once, and every node of the consumer reports the
// same values: alert on the age. All of them have the label consumer. Unregister the Registration before you close the
// pool. An error means that an instrument could not be made.
func Waiting(meter metric.Meter, consumer string, in *inbox.Inbox) (metric.Registration, error) {
	m := maker{meter: meter}
	events := m.gauge("holdfast.waiting.events", "{event}", "Events that are stored and wait")
	keys := m.gauge("holdfast.waiting.keys", "{key}", "Topics and keys that wait")
	oldest := m.age("holdfast.waiting.age", "How long the oldest stored event has waited")
	undeclared := m.gauge("holdfast.waiting.undeclared", "{event}", "Stored events of types that no running node of the consumer handles")
	who := metric.WithAttributeSet(attribute.NewSet(attribute.String("consumer", consumer)))
	return m.observe(func(ctx context.Context, o metric.Observer) error {
		w, err := in.Waiting(ctx)
		if err != nil {
			return fmt.Errorf("read stored events of %s: %w", consumer, err)
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
