package idempotency

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// The middleware between routers and other middleware, as they are.

// operations are those of the keys that are stored, in order.
func (b *bundle) operations() []string {
	b.Helper()
	rows, err := b.db.Query(b.Context(), "select operation from holdfast.idempotency order by created_at")
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	var operations []string
	for rows.Next() {
		var operation string
		if err := rows.Scan(&operation); err != nil {
			b.Fatal(err)
		}
		operations = append(operations, operation)
	}
	return operations
}

// R14.
func TestRouter_ChisPatternsAreOperationsOfMiddlewareAtTheRoute(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := b.guard()
	router := chi.NewRouter()
	router.With(g.Middleware).Post("/charges/{id}/refunds", b.charge)
	router.Route("/v1", func(r chi.Router) {
		r.Route("/shops/{shop}", func(r chi.Router) { r.With(g.Middleware).Post("/charges", b.charge) })
	})
	b.is(b.send(router, sent{key: "k", path: "/charges/1/refunds"}), 201, "")
	b.is(b.send(router, sent{key: "k", path: "/charges/1/refunds"}), 201, "")
	b.is(b.send(router, sent{key: "k", path: "/charges/2/refunds"}), 409, codePayloadMismatch)
	b.is(b.send(router, sent{key: "k", path: "/v1/shops/7/charges"}), 201, "")
	if got, want := b.operations(), []string{"POST /charges/{id}/refunds", "POST /v1/shops/{shop}/charges"}; !slices.Equal(got, want) {
		t.Errorf("got operations %q, want %q", got, want)
	}
	b.kept(2, 2, 2)
	if got := b.observed[0].Route; got != "POST /charges/{id}/refunds" {
		t.Errorf("got route %q", got)
	}
}

// R14.
func TestRouter_BeforeChiKnowsTheRouteThePathIsTheOperation(t *testing.T) {
	b := setup(t)
	g := b.guard()
	router := chi.NewRouter()
	router.Use(g.Middleware) // it runs before the pattern is known
	router.Post("/charges/{id}/refunds", b.charge)
	inner := chi.NewRouter()
	inner.Route("/v1", func(r chi.Router) {
		r.Use(g.Middleware) // here all of its pattern that is known is /v1/*
		r.Post("/charges", b.charge)
		r.Post("/refunds", b.charge)
	})
	for _, path := range []string{"/charges/1/refunds", "/charges/2/refunds"} {
		b.is(b.send(router, sent{key: "k", path: path}), 201, "")
		b.is(b.send(router, sent{key: "k", path: path}), 201, "")
	}
	for _, path := range []string{"/v1/charges", "/v1/refunds"} {
		b.is(b.send(inner, sent{key: "k", path: path}), 201, "")
		b.is(b.send(inner, sent{key: "k", path: path}), 201, "")
	}
	if got, want := b.operations(), []string{"POST /charges/1/refunds", "POST /charges/2/refunds", "POST /v1/charges", "POST /v1/refunds"}; !slices.Equal(got, want) {
		t.Errorf("got operations %q, want %q", got, want)
	}
	if got := b.observed[0].Route; got != "" {
		t.Errorf("a path is reported as the route: %q", got)
	}
	b.kept(4, 4, 4)
}

// R14.
func TestRouter_AnOperationFuncAsksChiBeforeItRoutes(t *testing.T) {
	b := setup(t)
	router := chi.NewRouter()
	g := b.guard(func(c *Config) {
		c.OperationFunc = func(r *http.Request) string { return router.Find(chi.NewRouteContext(), r.Method, r.URL.Path) }
	})
	router.Use(g.Middleware)
	router.Route("/v1", func(r chi.Router) { r.Post("/charges/{id}/refunds", b.charge) })
	b.is(b.send(router, sent{key: "k", path: "/v1/charges/1/refunds"}), 201, "")
	b.is(b.send(router, sent{key: "k", path: "/v1/charges/2/refunds"}), 409, codePayloadMismatch)
	if got := b.operations(); !slices.Equal(got, []string{"POST /v1/charges/{id}/refunds"}) {
		t.Errorf("got operations %q", got)
	}
	if got := b.observed[0].Route; got != "POST /v1/charges/{id}/refunds" {
		t.Errorf("got route %q", got)
	}
}

// R14.
func TestRouter_PatternsOfNetHTTPAreOperationsUnlessTheyOnlyMountOthers(t *testing.T) {
	b := setup(t)
	g := b.guard()
	inner := http.NewServeMux()
	inner.Handle("POST /charges", g.Middleware(http.HandlerFunc(b.charge)))
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", g.Middleware(http.HandlerFunc(b.charge)))
	mux.Handle("/inner/", http.StripPrefix("/inner", inner))
	mux.Handle("/outer/", g.Middleware(http.StripPrefix("/outer", http.HandlerFunc(b.charge))))
	mux.Handle("/rest/{rest...}", g.Middleware(http.HandlerFunc(b.charge)))
	for _, path := range []string{"/orders/1", "/inner/charges", "/outer/charges", "/rest/of/it"} {
		b.is(b.send(mux, sent{key: "k", path: path}), 201, "")
		b.is(b.send(mux, sent{key: "k", path: path}), 201, "")
	}
	if got, want := b.operations(), []string{"POST /orders/{id}", "POST /inner/charges", "POST /outer/charges", "POST /rest/of/it"}; !slices.Equal(got, want) {
		t.Errorf("got operations %q, want %q", got, want)
	}
	b.kept(4, 4, 4)
}

// R31.
func TestRouter_WhatTheRouterOrAnOuterMiddlewareAnswersIsNeverStored(t *testing.T) {
	b := setup(t)
	busy := true
	router := chi.NewRouter()
	router.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if busy {
				http.Error(w, "slow down", http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	router.With(b.guard().Middleware).Post("/charges", b.charge)
	b.is(b.send(router, sent{key: "k"}), 429, "")
	busy = false
	b.is(b.send(router, sent{key: "k", path: "/nowhere"}), 404, "")
	b.is(b.send(router, sent{key: "k", method: http.MethodPut}), 405, "")
	b.kept(0, 0, 0)
	b.is(b.send(router, sent{key: "k"}), 201, "")
	b.kept(1, 1, 1)
}

// expiring is a context whose time is over when a test says so.
type expiring struct {
	context.Context
	over chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.over }
func (e expiring) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// R21.
func TestRouter_AnAnswerThatATimeoutHandlerCutOffIsReplayed(t *testing.T) {
	b := setup(t)
	over, out := make(chan struct{}), make(chan struct{})
	inner := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.charge(w, r)
		close(over)
		<-out // long after the client's answer
	})
	outer := http.TimeoutHandler(inner, time.Minute, "too slow")
	w := b.send(outer, sent{key: "k", ctx: expiring{t.Context(), over}})
	if w.Code != 503 || w.Body.String() != "too slow" {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	b.is(b.send(outer, sent{key: "k"}), 409, codeInProgress)
	close(out)
	wait.Until(b, "the first is stored", func() bool { return slices.Contains(b.results(), Created) })
	w = b.send(outer, sent{key: "k"})
	if b.is(w, 201, ""); w.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v", w.Header())
	}
	b.kept(1, 1, 1)
}

// R5.
func TestRouter_CompressionOutsideOfTheMiddlewareIsNotStored(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	text := bytes.Repeat([]byte("all that is said twice compresses well. "), 100)
	router := chi.NewRouter()
	router.Use(middleware.Compress(5))
	router.With(b.guard().Middleware).Post("/charges", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(201)
		_, _ = w.Write(text)
	})
	for i, encoding := range []string{"gzip", "identity", "gzip"} { // what the client takes is no part of what it asks for
		w := b.send(router, sent{key: "k", header: http.Header{"Accept-Encoding": {encoding}}})
		b.is(w, 201, "")
		if replayed := w.Header().Get("Idempotency-Status") == "replayed"; replayed != (i > 0) {
			t.Errorf("%d: got %v", i, w.Header())
		}
		body := io.Reader(w.Body)
		if w.Header().Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		} else if encoding == "gzip" {
			t.Errorf("%d: it was not compressed: %v", i, w.Header())
		}
		if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d: got %q, %v", i, got, err)
		}
	}
	if n := pgtest.Count(t, b.db, "select octet_length(body) from holdfast.idempotency where not headers ? 'Content-Encoding'"); n != int64(len(text)) {
		t.Errorf("%d bytes are stored", n)
	}
}
