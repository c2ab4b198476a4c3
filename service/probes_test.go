package service_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/service"
)

func TestProbes_AProgramThatServesIsReadyWhileItsDatabaseAnswers(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	hold, held := make(chan struct{}), make(chan struct{})
	s := &service.Service{Pool: db.Pool, Relay: newRelay(t, db.Pool, &broker{}), Consumers: []service.Consumer{{Inbox: newInbox(t, db.Pool, "billing")}}}
	s.RunFuncs = []func(context.Context) error{func(ctx context.Context) error { <-ctx.Done(); close(held); <-hold; return nil }}
	probes := s.Probes()
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		probes.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if status, body := ask("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "the relay has not started: call Run") {
		t.Errorf("before Run, without a server: %d %s", status, body)
	}
	r := start(t, s, probes)
	wait.Until(t, "it is ready", func() bool { status, _ := get(t, r.url+"/readyz"); return status == http.StatusOK })
	if status, body := get(t, r.url+"/livez"); status != http.StatusOK || !strings.Contains(body, `"consumer billing":{"live":true`) || !strings.Contains(body, `"relay":{"live":true`) {
		t.Errorf("it runs: %d %s", status, body)
	}
	if status, _ := get(t, r.url+"/other"); status != http.StatusNotFound {
		t.Errorf("another path: %d", status)
	}
	r.stop()
	<-held
	if status, body := ask("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, `"reason":"the process is stopping"`) {
		t.Errorf("it stops: %d %s", status, body)
	}
	if status, body := ask("/livez"); status != http.StatusOK {
		t.Errorf("it stops: %d %s", status, body)
	}
	close(hold)
	if err := r.ended(t); err != nil {
		t.Error(err)
	}
}

// All connections are at work: the program is busy, and its database answers.
func TestProbes_ABusyPoolIsNoReason(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	config := db.Pool.Config()
	config.MaxConns, config.MinConns = 1, 0
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	w := httptest.NewRecorder()
	s := &service.Service{Pool: pool, Server: &http.Server{ReadHeaderTimeout: 1}}
	s.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusOK {
		t.Errorf("a busy pool: %d %s", w.Code, w.Body)
	}
	away, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	w = httptest.NewRecorder()
	s = &service.Service{Pool: away, Server: &http.Server{ReadHeaderTimeout: 1}}
	s.Probes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the database does not answer") {
		t.Errorf("no database: %d %s", w.Code, w.Body)
	}
}
