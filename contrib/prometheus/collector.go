package holdfastprometheus

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// Collector has the metrics of all parts of holdfast in a process. Register it with one registry. Its methods make the Observers of the
// parts, and may be called several times, for several consumers or pools. Many goroutines may use it at once.
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

// Outbox is metrics.Outbox: the Observer of an Outbox. The error of this and the following methods is always nil as long as the
// instruments are those of package metrics.
func (c *Collector) Outbox() (outbox.Observer, error) { return metrics.Outbox(c) }

// Relay is metrics.Relay: the Observer of a Relay.
func (c *Collector) Relay() (relay.Observer, error) { return metrics.Relay(c) }

// Inbox is metrics.Inbox: the Observer of an Inbox. All its metrics say which consumer they are of.
func (c *Collector) Inbox(consumer string) (inbox.Observer, error) { return metrics.Inbox(c, consumer) }

// Idempotency is metrics.Idempotency: the Observer of a Guard.
func (c *Collector) Idempotency() (idempotency.Observer, error) { return metrics.Idempotency(c) }

// Webhook is metrics.Webhook: the Observer of webhook endpoints.
func (c *Collector) Webhook() (webhook.Observer, error) { return metrics.Webhook(c) }

// Retry is metrics.Retry: the Observer of a retry.Transport.
func (c *Collector) Retry() (retry.Observer, error) { return metrics.Retry(c) }

// Database is metrics.ObserveDatabase: gauges of what is not published, stored, parked, a dead letter, and of the sizes of tables. The
// database is queried at most once in DatabaseConfig.Interval, however often Prometheus asks. Call stop before you close the pool.
func (c *Collector) Database(d *metrics.Database) (stop func() error, err error) {
	return metrics.ObserveDatabase(c, d)
}

// Lag is metrics.ObserveLag: how far consumers are from the ends of their partitions. kafkago.Offsets has the ends. Call stop before you
// close the pool.
func (c *Collector) Lag(d *metrics.Database, ends metrics.Ends) (stop func() error, err error) {
	return metrics.ObserveLag(c, d, ends)
}

// Pool is metrics.ObservePool: the connections of a pool, and the waits for them. Call stop before you close the pool.
func (c *Collector) Pool(name string, pool *pgxpool.Pool) (stop func() error, err error) {
	return metrics.ObservePool(c, name, pool)
}

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
type vector interface {
	prometheus.Collector
	metrics.Recorder
}

// Recorder makes a Counter or a Histogram, for package metrics. Making one twice gives the same one.
func (c *Collector) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.made[i.Name]; known != nil {
		return known, nil
	}
	name, labels := Name(i), labelsOf(i.Labels)
	switch i.Kind {
	case metrics.Counter:
		c.made[i.Name] = counters{prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: i.Description}, labels)}
	case metrics.Histogram:
		c.made[i.Name] = histograms{prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    name,
			Help:    i.Description,
			Buckets: i.Buckets,
		}, labels)}
	default:
		return nil, fmt.Errorf("%s is a %s: it must be a counter or a histogram", i.Name, i.Kind)
	}
	return c.made[i.Name], nil
}

type counters struct{ *prometheus.CounterVec }

func (c counters) With(values ...string) metrics.Series {
	return counterSeries{c.WithLabelValues(values...)}
}

type counterSeries struct{ prometheus.Counter }

func (s counterSeries) Record(_ context.Context, value float64) { s.Add(value) }

type histograms struct{ *prometheus.HistogramVec }

func (h histograms) With(values ...string) metrics.Series {
	return histogramSeries{h.WithLabelValues(values...)}
}

type histogramSeries struct{ prometheus.Observer }

func (s histogramSeries) Record(_ context.Context, value float64) { s.Observe(value) }

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
