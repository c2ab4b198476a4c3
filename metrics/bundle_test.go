package metrics_test

import (
	"context"
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
	return ofLedger{l, i}, nil
}

func (l *ledger) Observe([]metrics.Instrument, func(context.Context) ([]metrics.Reading, error)) (func() error, error) {
	return func() error { return nil }, nil
}

type ofLedger struct {
	l *ledger
	i metrics.Instrument
}

func (o ofLedger) With(values ...string) metrics.Series {
	if len(values) != len(o.i.Labels) {
		panic(o.i.Name + " has other labels than " + strings.Join(values, ", "))
	}
	return inLedger{o.l, o.i.Name + " " + strings.Join(values, ",")}
}

type inLedger struct {
	l    *ledger
	name string
}

func (i inLedger) Record(_ context.Context, value float64) {
	i.l.mu.Lock()
	defer i.l.mu.Unlock()
	i.l.values[i.name] += value
}
