package incidents

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// scrapeEvery is how far apart scrapes are, by the clock of the Prometheus of a test. Its minutes pass in seconds.
const scrapeEvery = 15 * time.Second

// scraper is a Prometheus for one test: what it has scraped, in memory, and Prometheus' own engine. Only one goroutine may use it.
type scraper struct {
	*testing.T
	registry *prometheus.Registry
	engine   *promql.Engine
	now      time.Time
	all      map[string]*scraped
}

// scraped is a series.
type scraped struct {
	labels labels.Labels
	points []chunks.Sample
	at     time.Time
}

func newScraper(t *testing.T, registry *prometheus.Registry) *scraper {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	t.Cleanup(func() { _ = engine.Close() })
	return &scraper{T: t, registry: registry, engine: engine, now: time.Now(), all: map[string]*scraped{}}
}

// scrape reads the registry, scrapeEvery after the last time.
func (s *scraper) scrape() {
	s.Helper()
	s.keep(s.gather())
}

func (s *scraper) gather() []*dto.MetricFamily {
	s.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	return families
}

// keep adds what was read, scrapeEvery after the last time.
func (s *scraper) keep(families []*dto.MetricFamily) {
	s.now = s.now.Add(scrapeEvery)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			s.metric(f.GetName(), m)
		}
	}
	for _, series := range s.all {
		if series.at.Equal(s.now.Add(-scrapeEvery)) { // It is not there any more.
			series.add(s.now, math.Float64frombits(value.StaleNaN))
		}
	}
}

// metric adds the value of a metric, or of each part of a histogram.
func (s *scraper) metric(name string, m *dto.Metric) {
	h := m.GetHistogram()
	if h == nil {
		s.add(name, m, "", m.GetCounter().GetValue()+m.GetGauge().GetValue())
		return
	}
	for _, b := range h.GetBucket() {
		s.add(name+"_bucket", m, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64), float64(b.GetCumulativeCount()))
	}
	s.add(name+"_bucket", m, "+Inf", float64(h.GetSampleCount()))
	s.add(name+"_sum", m, "", h.GetSampleSum())
	s.add(name+"_count", m, "", float64(h.GetSampleCount()))
}

func (s *scraper) add(name string, m *dto.Metric, le string, v float64) {
	b := labels.NewBuilder(labels.FromStrings("__name__", name, "job", "shop", "instance", "test"))
	for _, l := range m.GetLabel() {
		b.Set(l.GetName(), l.GetValue()) // One without a value is none.
	}
	if le != "" {
		b.Set("le", le)
	}
	set := b.Labels()
	key := set.String()
	if s.all[key] == nil {
		s.all[key] = &scraped{labels: set}
	}
	s.all[key].add(s.now, v)
	s.all[key].at = s.now
}

func (s *scraped) add(at time.Time, v float64) { s.points = append(s.points, point{at.UnixMilli(), v}) }

// pass lets time pass in which nothing happens: what is read now is scraped again and again.
func (s *scraper) pass(d time.Duration) {
	s.Helper()
	families := s.gather()
	for ; d > 0; d -= scrapeEvery {
		s.keep(families)
	}
}

// query evaluates an expression now.
func (s *scraper) query(expr string) promql.Vector {
	s.Helper()
	q, err := s.engine.NewInstantQuery(s.Context(), s, nil, expr, s.now)
	if err != nil {
		s.Fatal(expr, err)
	}
	defer q.Close()
	v, err := q.Exec(s.Context()).Vector()
	if err != nil {
		s.Fatal(expr, err)
	}
	return slices.Clone(v)
}

// Querier is for the engine.
func (s *scraper) Querier(_, _ int64) (storage.Querier, error) { return querier{all: s.all}, nil }

type querier struct {
	storage.LabelQuerier
	all map[string]*scraped
}

func (q querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{}
	for _, s := range q.all {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			set.all = append(set.all, storage.NewListSeries(s.labels, s.points))
		}
	}
	return set
}

type seriesSet struct {
	all  []storage.Series
	next int
}

func (s *seriesSet) Next() bool                        { s.next++; return s.next <= len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.next-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// point is a value at a time in milliseconds.
type point struct {
	t int64
	v float64
}

func (p point) T() int64                      { return p.t }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

func TestPrometheus_TheScraperIsAskedAsPrometheusIs(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, []string{"who"})
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h_seconds", Buckets: []float64{1, 10}})
	registry.MustRegister(c, h)
	s := newScraper(t, registry)
	s.pass(10 * time.Minute)
	if got := s.query("c_total"); len(got) != 0 {
		t.Errorf("got %v of nothing", got)
	}
	c.WithLabelValues("a").Add(3)
	h.Observe(5)
	s.scrape()
	const rises = "sum by (job) ((c_total unless c_total offset 5m) or increase(c_total[5m]))"
	if got := s.query(rises); len(got) != 1 || got[0].F != 3 || got[0].Metric.String() != `{job="shop"}` {
		t.Errorf("a counter that is new has increased by %v", got)
	}
	s.pass(6 * time.Minute)
	if got := s.query(rises); len(got) != 1 || got[0].F != 0 {
		t.Errorf("a counter that stands still has increased by %v", got)
	}
	c.WithLabelValues("a").Add(60)
	h.Observe(5)
	s.pass(time.Minute)
	if got := s.query(rises); len(got) != 1 || got[0].F < 59 || got[0].F > 66 {
		t.Errorf("a counter has increased by %v, want about 60", got)
	}
	if got := s.query(`histogram_quantile(0.5, rate(h_seconds_bucket[5m]))`); len(got) != 1 || got[0].F <= 1 || got[0].F > 10 {
		t.Errorf("the median is %v", got)
	}
	registry.Unregister(c)
	s.scrape()
	if got := s.query("c_total"); len(got) != 0 {
		t.Errorf("what is gone is %v", got)
	}
}
