package metrics_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/metrics"
)

func TestRequests_ARequestBeyondMaxKeysIsCountedAsLimited(t *testing.T) {
	t.Parallel()
	counts := newLedger()
	observer, err := metrics.Idempotency(counts)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := idempotency.New(migrated.New(t).Pool, idempotency.Config{
		Principal: func(*http.Request) (string, error) { return "a", nil },
		MaxKeys:   1,
		Observer:  observer,
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := guard.Route(idempotency.Route{Operation: "POST /charges"})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}))
	for key, status := range []int{http.StatusCreated, http.StatusTooManyRequests} {
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", string(rune('a'+key)))
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != status {
			t.Fatalf("got %d %s, want %d", w.Code, w.Body, status)
		}
	}
	for name, want := range map[string]float64{"idempotent.created": 1, "idempotent.refused": 1, "idempotent.limited": 1} {
		if got := counts.values[name+" POST /charges"]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

// Of a call that ended without the event, the context says whether its time was over.
func TestRequests_AWaitIsSortedByHowItEnded(t *testing.T) {
	t.Parallel()
	counts := newLedger()
	observer, err := metrics.Wait(counts)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	for _, w := range []struct {
		ctx     context.Context
		settled holdfast.Settlement
		err     error
	}{{t.Context(), holdfast.Handled, nil}, {t.Context(), holdfast.Dead, nil}, {late, holdfast.Stored, context.Canceled}, {late, holdfast.Handled, nil}, {t.Context(), holdfast.Unseen, holdfast.ErrSchemaMissing}} {
		observer.OnWaited(w.ctx, holdfast.Waited{Consumer: "billing", Settlement: w.settled, Took: time.Second, Err: w.err})
	}
	for result, want := range map[string]float64{"handled": 2, "dead": 1, "unsettled": 1, "error": 1} {
		if got := counts.values["holdfast.wait billing,"+result]; got != want {
			t.Errorf("%s waited for %v s, want %v", result, got, want)
		}
	}
}
