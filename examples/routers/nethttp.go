package routers

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/holdfast-go/holdfast/idempotency"
)

// NetHTTP guards a route of net/http. Nothing is needed.
func NetHTTP(guard *idempotency.Guard, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /charges", guard.Middleware(h))
	return mux
}

// Chi guards a route of chi with With, so that the router knows the pattern.
func Chi(guard *idempotency.Guard, h http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.Recoverer)
	r.With(guard.Middleware).Method(http.MethodPost, "/charges", h)
	return r
}
