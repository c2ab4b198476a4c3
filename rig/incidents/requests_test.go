package incidents

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/webhook"
)

// guarded is a route that makes each charge once.
func (s *scene) guarded(pool *pgxpool.Pool) http.Handler {
	s.Helper()
	guard := need[*idempotency.Guard](s)(idempotency.New(pool, idempotency.Config{Logger: s.logger, Observer: need[idempotency.Observer](s)(metrics.Idempotency(s.watched)),
		Principal: func(*http.Request) (string, error) { return "a", nil }}))
	mux := http.NewServeMux()
	mux.Handle("POST /charges", guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("{}"))
	})))
	return mux
}

// post sends a request, and returns the status of its answer.
func (s *scene) post(h http.Handler, path, key string) int {
	s.Helper()
	request := httptest.NewRequestWithContext(s.Context(), http.MethodPost, path, strings.NewReader("{}"))
	request.Header.Set("Idempotency-Key", key)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	return answer.Code
}

// Somebody has changed a stored answer.
func answerUnusable(s *scene) (over func()) {
	s.on(nil)
	h := s.guarded(s.db.Pool)
	s.healthy()
	const key = "0123456789abcdef"
	if code := s.post(h, "/charges", key); code != http.StatusCreated {
		s.Fatal(code)
	}
	s.exec("update holdfast.idempotency set body = 'changed'")
	if code := s.post(h, "/charges", key); code != http.StatusServiceUnavailable {
		s.Fatal(code)
	}
	return func() {}
}

// Nobody listens where the route's database should be.
func requestsRefused(s *scene) (over func()) {
	s.on(nil)
	pool := need[*pgxpool.Pool](s)(pgxpool.New(s.Context(), "postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1"))
	s.Cleanup(pool.Close)
	h := s.guarded(pool)
	s.healthy()
	for n := range 60 {
		if code := s.post(h, "/charges", strings.Repeat("k", 16)); code != http.StatusServiceUnavailable {
			s.Fatal(code)
		}
		if n%10 == 0 {
			s.prom.scrape()
		}
	}
	return func() {}
}

// Somebody sends what is not signed.
func webhooksRefused(s *scene) (over func()) {
	s.on(nil)
	in := s.newInbox(s.db.Pool, handled, nil)
	verifier := webhook.VerifierFunc(func(http.Header, []byte, time.Time) (webhook.Delivery, error) {
		return webhook.Delivery{}, &webhook.RefusedError{Reason: webhook.ReasonMissing, Rule: "it must be signed"}
	})
	h := need[http.Handler](s)(webhook.New(in, "bank", verifier, webhook.Config{Logger: s.logger, Observer: need[webhook.Observer](s)(metrics.Webhook(s.watched))}))
	s.healthy()
	for n := range 120 {
		s.post(h, "/hook", "")
		if n%20 == 0 {
			s.prom.scrape()
		}
	}
	return func() {}
}
