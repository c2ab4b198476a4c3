package holdfastprometheus

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast/metrics"
)

// Collector has the metrics of all parts of holdfast in a process. It is a metrics.Meter: register it with one registry, and give it to
// the functions of package metrics, also several times, for several consumers or pools. With it, the error of metrics.Outbox, Relay,
// Inbox, Idempotency, Webhook, Wait and Retry is always nil. Many goroutines may use it at once.
type Collector struct {
	mu       sync.Mutex
	made     map[string]vector
	observed []*observed
}

// New returns a Collector without metrics.
func New() *Collector { return &Collector{made: map[string]vector{}} }

var (
	_ prometheus.Collector = (*Collector)(nil)
	_ metrics.Meter        = (*Collector)(nil)
)

// Describe sends nothing: which metrics there are becomes known as parts are observed. Prometheus then checks them when it collects.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics that have values.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	made, all := make([]vector, 0, len(c.made)), slices.Clone(c.observed)
	for _, v := range c.made {
		made = append(made, v)
	}
	c.mu.Unlock()
	for _, v := range made {
		v.Collect(to)
	}
	for _, o := range all {
		o.collect(to)
	}
}

// vector is an instrument that records.
type vector struct {
	prometheus.Collector
	recorder metrics.Recorder
}

// Recorder makes a Counter or a Histogram, for package metrics. Making one twice gives the same one. An instrument of another kind is an
// error.
func (c *Collector) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, there := c.made[i.Name]; there {
		return known.recorder, nil
	}
	var made vector
	switch i.Kind {
	case metrics.Counter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: Name(i), Help: i.Description}, labelsOf(i.Labels))
		made = vector{v, func(labels ...string) func(context.Context, float64) {
			one := v.WithLabelValues(labels...)
			return func(_ context.Context, value float64) { one.Add(value) }
		}}
	case metrics.Histogram:
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    Name(i),
			Help:    i.Description,
			Buckets: i.Buckets,
		}, labelsOf(i.Labels))
		made = vector{v, func(labels ...string) func(context.Context, float64) {
			one := v.WithLabelValues(labels...)
			return func(_ context.Context, value float64) { one.Observe(value) }
		}}
	default:
		return nil, fmt.Errorf("%s is a %s: it must be a counter or a histogram", i.Name, i.Kind)
	}
	c.made[i.Name] = made
	return made.recorder, nil
}

// observed are instruments that are read when Prometheus asks.
type observed struct {
	descs []*prometheus.Desc
	kinds []prometheus.ValueType
	read  func(ctx context.Context) ([]metrics.Reading, error)
}

// Observe makes gauges and counters that read returns, for package metrics.
func (c *Collector) Observe(is []metrics.Instrument, read func(ctx context.Context) ([]metrics.Reading, error)) (stop func() error, err error) {
	o := &observed{read: read}
	for _, i := range is {
		kind := prometheus.GaugeValue
		if i.Kind == metrics.Total {
			kind = prometheus.CounterValue
		}
		o.descs, o.kinds = append(o.descs, prometheus.NewDesc(Name(i), i.Description, labelsOf(i.Labels), nil)), append(o.kinds, kind)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observed = append(c.observed, o)
	return func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.observed = slices.DeleteFunc(c.observed, func(other *observed) bool { return other == o })
		return nil
	}, nil
}

// collect sends what can be read. What cannot is missing, and the rest of the process is collected all the same.
func (o *observed) collect(to chan<- prometheus.Metric) {
	values, err := o.read(context.Background())
	if err != nil {
		return
	}
	for _, v := range values {
		to <- prometheus.MustNewConstMetric(o.descs[v.Index], o.kinds[v.Index], v.Value, v.Labels...)
	}
}
