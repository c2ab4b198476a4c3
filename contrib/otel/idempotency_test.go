package holdfastotel_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	holdfastotel "github.com/holdfast-go/holdfast/contrib/otel"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/metrics"
)

// R33.
func TestIdempotency_RequestsAreCountedByResultAndOperation(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	reader := metric.NewManualReader()
	observer, err := metrics.Idempotency(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	in, out := make(chan struct{}), make(chan struct{})
	h, g := guardedService(t, db, observer, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch string(body) {
		case `"slow"`:
			in <- struct{}{}
			<-out
		case `"fail"`:
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		created(w, r)
	})
	for range 4 { // R5: one runs, three are replays
		send(t.Context(), h, "/charges", "k1", `1`)
	}
	send(t.Context(), h, "/charges", "k1", `2`) // R6
	var first sync.WaitGroup
	first.Go(func() { send(t.Context(), h, "/charges", "slow", `"slow"`) })
	<-in
	for range 2 { // R11
		send(t.Context(), h, "/charges", "slow", `"slow"`)
	}
	close(out)
	first.Wait()
	send(t.Context(), h, "/charges", "k2", `"fail"`)
	send(t.Context(), h, "/charges", "", `1`)
	send(t.Context(), h, "/refunds/1", "", `1`)
	send(t.Context(), h, "/refunds/2", "k", `1`)
	send(t.Context(), h, "/below/1", "k", `1`)
	pgtest.Exec(t, db, "update holdfast.idempotency set expires_at = clock_timestamp() where key = 'k1'")
	send(t.Context(), h, "/charges", "k1", `1`) // R23
	pgtest.Exec(t, db, "update holdfast.idempotency set body_hash = '' where key = 'k1'")
	send(t.Context(), h, "/charges", "k1", `1`) // R42
	pgtest.Exec(t, db, "update holdfast.idempotency set expires_at = clock_timestamp()")
	if _, err := g.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db, "drop table holdfast.idempotency cascade")
	send(t.Context(), h, "/charges", "k9", `1`) // R27

	got := collected(t, reader)
	const charges, refunds = "{operation=POST /charges}", "{operation=POST /refunds/{id}}"
	for name, want := range map[string]int64{
		"idempotent.created" + charges: 3, "idempotent.replayed" + charges: 3, "idempotent.conflict" + charges: 1, "idempotent.in_progress" + charges: 2,
		"idempotent.forgotten" + charges: 1, "idempotent.refused" + charges: 1, "idempotent.expired" + charges: 1, "idempotent.unusable" + charges: 1,
		"idempotent.unavailable" + charges: 1,
		"idempotent.bypassed" + refunds:    1, "idempotent.created" + refunds: 1, "idempotent.created{operation=unnamed}": 1,
		"idempotent.duration{operation=POST /charges,outcome=replayed}": 3, "idempotent.duration{operation=POST /charges,outcome=created}": 3,
		"idempotent.cleaned{}": 4, "idempotent.cleaning.duration{}": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
		delete(got, name)
	}
	for name := range got {
		if !strings.HasPrefix(name, "idempotent.duration") {
			t.Errorf("%s was not expected", name)
		}
		if strings.Contains(name, "key") || strings.Contains(name, "/1") {
			t.Errorf("%s has a label that clients choose", name)
		}
	}
}

// R33.
func TestIdempotency_TheSpanOfARequestSaysWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	observer, err := metrics.Idempotency(holdfastotel.Meter(noop.NewMeterProvider().Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	h, _ := guardedService(t, migrated.New(t), holdfastotel.IdempotencyAttributes(observer), created)
	traced := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := tracer.Start(r.Context(), "request")
		defer span.End()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
	for _, body := range []string{`1`, `1`, `2`} {
		send(t.Context(), traced, "/charges", "key-0123456789", body)
	}
	send(t.Context(), traced, "/charges", "", `1`)
	var got []map[string]string
	for _, s := range spans.GetSpans() {
		attributes := map[string]string{}
		for _, a := range s.Attributes {
			attributes[string(a.Key)] = a.Value.String()
		}
		got = append(got, attributes)
	}
	if len(got) != 4 {
		t.Fatalf("got %d spans", len(got))
	}
	key := got[0]["idempotency_key"]
	if len(key) != 16 {
		t.Errorf("the key is %q, want 16 digits of a hash", key)
	}
	for i, want := range []map[string]string{
		{"outcome": "created", "idempotency_key": key, "attempt": "1"},
		{"outcome": "replayed", "idempotency_key": key},
		{"outcome": "conflict", "idempotency_key": key},
		{"outcome": "refused"},
	} {
		if fmt.Sprint(got[i]) != fmt.Sprint(want) {
			t.Errorf("span %d has %v, want %v", i, got[i], want)
		}
	}
}

// R33.
func TestIdempotency_ManyOperationsShareALabelInTheEnd(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	observer, err := metrics.Idempotency(holdfastotel.Meter(metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 3 * maxLabels {
		all.Go(func() {
			observer.OnOutcome(t.Context(), idempotency.Outcome{Result: idempotency.Created, Route: fmt.Sprint("POST /", i), Took: time.Millisecond})
		})
	}
	all.Wait()
	observer.OnOutcome(t.Context(), idempotency.Outcome{Result: "of a later version", Route: "POST /x"})
	got := collected(t, reader)
	if got["idempotent.created{operation=other}"] != 2*maxLabels || got["idempotent.other{operation=other}"] != 1 {
		t.Errorf("got %d and %d of others", got["idempotent.created{operation=other}"], got["idempotent.other{operation=other}"])
	}
	if len(got) != 2*(maxLabels+1)+2 {
		t.Errorf("there are %d series", len(got))
	}
}
