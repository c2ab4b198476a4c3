// Package guarded imitates a guard of package idempotency, for tests of what puts one in front of a router's handlers.
package guarded

import (
	"context"
	"net/http"
	"net/http/httptest"
)

// Guard keeps what is answered inside of it, and what the request says there, before it sends the answer. Its method Middleware is one of net/http.
type Guard struct {
	Refuse bool // it answers by itself

	Answer  *httptest.ResponseRecorder // of the last request; its code is 0 if nothing was written
	Pattern string
}

type inside struct{}

// Inside says whether a context is that of a request inside a Guard.
func Inside(ctx context.Context) bool { return ctx.Value(inside{}) != nil }

// Middleware is what Guard.Middleware of package idempotency is.
func (g *Guard) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Refuse {
			http.Error(w, "in progress", http.StatusConflict)
			return
		}
		g.Pattern, g.Answer = r.Pattern, httptest.NewRecorder()
		g.Answer.Code = 0
		next.ServeHTTP(g.Answer, r.WithContext(context.WithValue(r.Context(), inside{}, true)))
		if g.Answer.Code == 0 {
			http.Error(w, "no answer", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(g.Answer.Code)
		_, _ = w.Write(g.Answer.Body.Bytes())
	})
}
