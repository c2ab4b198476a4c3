package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/metrics"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// ledger is a Meter that adds up what is recorded, by instrument and label values.
type ledger struct {
	mu     sync.Mutex
	values map[string]float64
}

func newLedger() *ledger { return &ledger{values: map[string]float64{}} }

func (l *ledger) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	return func(labels ...string) func(context.Context, float64) {
		if len(labels) != len(i.Labels) {
			panic(i.Name + " has other labels than " + strings.Join(labels, ", "))
		}
		name := i.Name + " " + strings.Join(labels, ",")
		return func(_ context.Context, value float64) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.values[name] += value
		}
	}, nil
}

func (l *ledger) Observe([]metrics.Instrument, func(context.Context) ([]metrics.Reading, error)) (func() error, error) {
	return func() error { return nil }, nil
}

// gauges is a Meter that keeps what is observed, until it is stopped.
type gauges struct {
	*ledger
	sets   map[string]func(context.Context) ([]metrics.Reading, error) // by the name of the first instrument
	refuse string                                                      // the name of one that it does not make
}

func newGauges() *gauges {
	return &gauges{ledger: newLedger(), sets: map[string]func(context.Context) ([]metrics.Reading, error){}}
}

var errRefused = errors.New("planned")

func (g *gauges) Observe(is []metrics.Instrument, read func(context.Context) ([]metrics.Reading, error)) (func() error, error) {
	name := is[0].Name
	if name == g.refuse {
		return nil, errRefused
	}
	g.sets[name] = read
	return func() error { delete(g.sets, name); return nil }, nil
}

// readings are what is read of the set that begins with an instrument, by index and labels.
func (g *gauges) readings(t *testing.T, first string) map[string]float64 {
	t.Helper()
	all, err := g.sets[first](t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range all {
		got[fmt.Sprintf("%d%v", r.Index, r.Labels)] = r.Value
	}
	return got
}
