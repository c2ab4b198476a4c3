package holdfastotel_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/retry"
)

// R33.
func TestRetry_AttemptsAreCountedByWhatTheyMetAndTheirDelaysRecorded(t *testing.T) {
	t.Parallel()
	answers := []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusCreated}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := answers[0]
		answers = answers[1:]
		w.WriteHeader(status)
	}))
	defer server.Close()
	reader, spans := metric.NewManualReader(), tracetest.NewInMemoryExporter()
	observer, err := metrics.Retry(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test").Start(t.Context(), "order")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &retry.Transport{Policy: retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: time.Millisecond}, Observer: holdfastotel.RetryEvents(observer)}}
	r.Header.Set("Idempotency-Key", "k")
	w, err := client.Do(r)
	if err != nil || w.StatusCode != http.StatusCreated {
		t.Fatalf("got %v, %v", w, err)
	}
	w.Body.Close()
	server.Close()
	if w, err = client.Get(server.URL); err == nil {
		w.Body.Close()
		t.Fatal("a server that is gone has answered")
	}
	span.End()
	got := collected(t, reader)
	for name, want := range map[string]int64{
		"holdfast.retry.attempts{met=5xx,repeat=false}": 1, "holdfast.retry.attempts{met=4xx,repeat=true}": 1, "holdfast.retry.attempts{met=2xx,repeat=true}": 1,
		"holdfast.retry.attempts{met=error,repeat=false}": 1, "holdfast.retry.attempts{met=error,repeat=true}": 2, "holdfast.retry.delay{}": 4,
	} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
	events := spans.GetSpans()[0].Events
	if len(events) != 3 || events[1].Name != "http attempt" {
		t.Fatalf("the span has the events %v", events)
	}
	if status := events[1].Attributes[2]; status.Key != "status" || status.Value.AsInt64() == 0 {
		t.Errorf("the second attempt says %v", events[1].Attributes)
	}
}
