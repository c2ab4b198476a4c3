package holdfastotel_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }

// guardedService is POST /charges and POST /refunds/{id} behind a guard with that observer.
func guardedService(t *testing.T, db *pgtest.DB, observer idempotency.Observer, handler http.HandlerFunc) (http.Handler, *idempotency.Guard) {
	t.Helper()
	g, err := idempotency.New(db.Pool, idempotency.Config{
		Principal: func(r *http.Request) (string, error) { return "a", nil },
		Logger:    slog.New(slog.DiscardHandler), Observer: observer,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", g.Middleware(handler))
	mux.Handle("POST /refunds/{id}", g.Route(idempotency.Route{Optional: true})(handler))
	mux.Handle("/below/", g.Middleware(handler))
	return mux, g
}

func send(ctx context.Context, h http.Handler, path, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func created(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "{}")
}

// collected are the values of all counters and gauges and the counts of all histograms, as name{label=value,…}.
func collected(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[m.Name+labels(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[m.Name+labels(p.Attributes)] = int64(p.Count)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[m.Name+labels(p.Attributes)] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					values[m.Name+labels(p.Attributes)] = int64(p.Value)
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return values
}

func labels(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		parts = append(parts, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	return "{" + strings.Join(parts, ",") + "}"
}
