// Package instruments lists what package metrics measures, for tests of what names metrics: pages, dashboards, alerts and scalers.
package instruments

import (
	"context"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/metrics"
)

// All returns every instrument of package metrics, in the order of docs/reference/metrics.md. It asks each function of the package for
// its instruments, and panics if one fails, or if two instruments of one name differ.
func All() []metrics.Instrument {
	noted := &notes{}
	var problem error
	note := func(_ any, err error) {
		if problem == nil {
			problem = err
		}
	}
	ends := func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
		return nil, nil
	}
	pool := new(pgxpool.Pool) // Nobody uses it before a reading.
	note(metrics.Outbox(noted))
	note(metrics.Relay(noted))
	note(metrics.Inbox(noted, "a consumer"))
	note(metrics.ObserveDatabase(noted, pool, metrics.DatabaseConfig{EndsFunc: ends}))
	note(metrics.ObservePool(noted, "a pool", pool))
	note(metrics.Idempotency(noted))
	note(metrics.Webhook(noted))
	note(metrics.Wait(noted))
	note(metrics.Retry(noted))
	if problem != nil {
		panic(problem)
	}
	return noted.all
}

// notes is a Meter that notes what is made.
type notes struct{ all []metrics.Instrument }

func (n *notes) note(i metrics.Instrument) {
	for _, known := range n.all {
		switch {
		case known.Name != i.Name:
		case !reflect.DeepEqual(known, i):
			panic(fmt.Sprintf("two instruments have the name %s: %+v and %+v", i.Name, known, i))
		default: // Two parts measure with it.
			return
		}
	}
	n.all = append(n.all, i)
}

// Recorder notes a Counter or a Histogram. It is not for recording.
func (n *notes) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	n.note(i)
	return func(...string) func(context.Context, float64) { return nil }, nil
}

// Observe notes Gauges and Totals, and reads nothing.
func (n *notes) Observe(is []metrics.Instrument, _ func(context.Context) ([]metrics.Reading, error)) (stop func() error, err error) {
	for _, i := range is {
		n.note(i)
	}
	return func() error { return nil }, nil
}
