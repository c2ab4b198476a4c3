package metrics

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// Kind is how the values of an Instrument are to be understood.
type Kind string

// The kinds.
const (
	Counter   Kind = "counter"   // counts up; recorded when something happens
	Histogram Kind = "histogram" // durations, sorted into Buckets; recorded when something happens
	Gauge     Kind = "gauge"     // a value at a moment; read when it is asked for
	Total     Kind = "total"     // a counter that is kept elsewhere; read when it is asked for
)

// Instrument is one metric.
type Instrument struct {
	Name        string // with dots, as OpenTelemetry has it
	Kind        Kind
	Unit        string // in UCUM: "s", "By", and in braces what is counted: "{event}"
	Description string
	Labels      []string
	Buckets     []float64 // upper bounds of a Histogram
}

// Meter makes instruments of a library of metrics. Making one twice must give the same one. Its methods are called while a program
// is set up, from one goroutine.
type Meter interface {
	// Recorder makes a Counter or a Histogram.
	Recorder(i Instrument) (Recorder, error)

	// Observe makes Gauges and Totals, whose values read returns when the library asks for them. After an error of read they have no
	// values. stop ends that.
	Observe(is []Instrument, read func(ctx context.Context) ([]Reading, error)) (stop func() error, err error)
}

// Recorder is a Counter or a Histogram. It returns the series with these values of Instrument.Labels, in their order; an empty value
// means that the series does not have the label. The series takes values: what a Counter counts up by, or what a Histogram sorts in.
// Its context may have a span. A series is kept and seldom asked for twice, so whatever costs belongs there. Many goroutines may call
// both at once.
type Recorder func(labels ...string) (record func(ctx context.Context, value float64))

// Reading is a value of a Gauge or a Total: Index says which of the instruments of Meter.Observe it is of.
type Reading struct {
	Index  int
	Value  float64
	Labels []string
}

// maker makes instruments and remembers the first error.
type maker struct {
	meter Meter
	err   error
}

func (m *maker) of(i Instrument) *series {
	if m.err != nil {
		return nil
	}
	r, err := m.meter.Recorder(i)
	if err != nil {
		m.err = fmt.Errorf("make instrument %s: %w", i.Name, err)
		return nil
	}
	return &series{recorder: r}
}

// series finds the series of an instrument by their labels. Label values are bounded, and so is what it keeps.
type series struct {
	recorder Recorder
	known    sync.Map // of what recorder returned, by the labels
}

func (s *series) record(ctx context.Context, value float64, labels ...string) {
	s.with(labels...)(ctx, value)
}

func (s *series) with(labels ...string) (record func(ctx context.Context, value float64)) {
	key := ""
	switch len(labels) {
	case 0:
	case 1:
		key = labels[0]
	default:
		key = strings.Join(labels, "\x00")
	}
	known, ok := s.known.Load(key)
	if !ok {
		known, _ = s.known.LoadOrStore(key, s.recorder(append([]string(nil), labels...)...))
	}
	return known.(func(ctx context.Context, value float64))
}
