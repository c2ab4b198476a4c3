package metrics_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
