package quickstart

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// Before Run the process is live, and not ready.
func TestProbes_ProbesSayWhyTheProcessIsNotReady(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	p, err := kafkago.NewPublisher(kafkago.Connection{Brokers: []string{"127.0.0.1:1"}}, kafkago.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r, err := relay.New(pool, p, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	probes := Probes(pool, r, in)
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
		w := httptest.NewRecorder()
		probes.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if w.Code != want || !strings.Contains(w.Body.String(), `"relay":["the relay has not started: call Run"]`) || !strings.Contains(w.Body.String(), `"inbox":["the database does not answer`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
