package holdfastprometheus_test

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }

// silent is for what would log a lot.
var silent = slog.New(slog.DiscardHandler)

// registered is a collector in a registry that checks what it sends.
func registered(t *testing.T) (*holdfastprometheus.Collector, *prometheus.Registry) {
	t.Helper()
	c, r := holdfastprometheus.New(), prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	return c, r
}

func need[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// families are the metrics of a registry by name.
func families(t *testing.T, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.MetricFamily{}
	for _, f := range all {
		found[f.GetName()] = f
	}
	return found
}

// values are counters, gauges and the counts of histograms, as name{label=value,…} with the labels that have a value.
func values(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for name, f := range families(t, r) {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			slices.Sort(labels)
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			found[fmt.Sprintf("%s{%s}", name, strings.Join(labels, ","))] = value
		}
	}
	return found
}
