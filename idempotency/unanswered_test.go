package idempotency

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A handler that returns without an answer has not said that its work is done. Nothing of it is kept, and its key is free.

// half is a handler that does half its work, and then meets the end of its context. The second time it does all of it.
func (b *bundle) half(end func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if b.runs.Add(1) > 1 {
			b.halves(r.Context(), "debit", "credit")
			w.WriteHeader(http.StatusCreated)
			return
		}
		b.halves(r.Context(), "debit")
		end()
		<-r.Context().Done()
	}
}

// left is how many rows an unfinished request leaves: under a lease the key is kept for the same request.
func left(o Route) int64 {
	if o.Lease > 0 {
		return 1
	}
	return 0
}

// halves inserts charges, in a step of its own each where the route has a lease.
func (b *bundle) halves(ctx context.Context, names ...string) {
	b.Helper()
	for _, name := range names {
		insert := func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, "insert into charge (amount) values ($1)", name)
			return name, err
		}
		var err error
		if h := handlingOf(ctx); h != nil && h.tx != nil {
			_, err = insert(ctx, Tx(ctx))
		} else if info, _ := InfoOf(ctx); info.Key != "" {
			_, err = Step(ctx, name, insert)
		}
		if err != nil {
			b.Error(err)
		}
	}
}

func TestUnanswered_AHandlerWhoseContextEndsAndThatWritesNothingIsNotKept(t *testing.T) {
	for mode, o := range modes {
		for name, limit := range map[string]struct {
			timeout time.Duration
			header  http.Header
			cancel  bool
		}{
			"the route's time":    {timeout: 2 * time.Second},
			"the client's budget": {header: http.Header{"X-Request-Timeout": {"2"}}},
			"the client's end":    {cancel: true},
		} {
			t.Run(mode+", "+name, func(t *testing.T) {
				b := setup(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end := func() {}
				if limit.cancel {
					end = cancel
				}
				route := o
				route.Timeout = limit.timeout
				h := b.service(b.guard(), b.half(end), route)
				first := b.send(h, sent{key: "k", header: limit.header, ctx: ctx})
				b.is(first, http.StatusServiceUnavailable, codeHandlerTimeout)
				if first.Header().Get("Retry-After") == "" || first.Header().Get("Idempotency-Status") != "" {
					t.Errorf("headers: %v", first.Header())
				}
				b.kept(left(route), 0, left(route)) // a step is kept
				b.is(b.send(h, sent{key: "k"}), http.StatusCreated, "")
				b.kept(2, 0, 1)
				b.is(b.send(h, sent{key: "k"}), http.StatusCreated, "")
				if n := b.runs.Load(); n != 2 {
					t.Errorf("the handler ran %d times", n)
				}
			})
		}
	}
}

// Routers whose handlers return errors write them when the middleware has returned.
func TestUnanswered_AnErrorThatIsWrittenOutsideTheGuardIsNotKept(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			var log bytes.Buffer
			g := b.guard(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			fails := true
			handler := func(w http.ResponseWriter, r *http.Request) error {
				b.runs.Add(1)
				if fails {
					return errors.New("the card is declined")
				}
				b.halves(r.Context(), "debit")
				w.WriteHeader(http.StatusCreated)
				return nil
			}
			service := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var err error
				g.Route(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { err = handler(w, r) })).ServeHTTP(w, r)
				if err != nil {
					http.Error(w, err.Error(), http.StatusPaymentRequired) // too late
				}
			})
			b.is(b.send(service, sent{key: "k"}), http.StatusServiceUnavailable, codeNoAnswer)
			b.kept(0, 0, left(o))
			if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "inside the guard") {
				t.Errorf("nothing says what to do: %s", &log)
			}
			fails = false
			b.is(b.send(service, sent{key: "k"}), http.StatusCreated, "")
			b.kept(1, 0, 1)
		})
	}
}

func TestUnanswered_AHandlerThatHijacksOrPanicsIsNotKept(t *testing.T) {
	for mode, o := range modes {
		for name, do := range map[string]func(w http.ResponseWriter){
			"hijacks": func(w http.ResponseWriter) {
				if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
					conn.Close()
					t.Error("it got the connection")
				}
			},
			"panics": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			"panics after its answer": func(w http.ResponseWriter) {
				w.WriteHeader(http.StatusCreated)
				panic(http.ErrAbortHandler)
			},
		} {
			t.Run(mode+", "+name, func(t *testing.T) {
				b := setup(t)
				var inner http.ResponseWriter // Some routers go on with the last writer that a middleware gave them.
				guarded := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
					inner = w
					if b.runs.Add(1) > 1 {
						b.halves(r.Context(), "debit", "credit")
						w.WriteHeader(http.StatusCreated)
						return
					}
					if o.Lease == 0 {
						b.halves(r.Context(), "debit")
					}
					do(w)
				}, o)
				h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer func() {
						if recover() != nil {
							http.Error(inner, "recovered outside", http.StatusInternalServerError)
						}
					}()
					guarded.ServeHTTP(w, r)
				})
				if first := b.send(h, sent{key: "k"}); first.Code < 500 || name != "hijacks" && !strings.Contains(first.Body.String(), "recovered outside") {
					t.Errorf("got %d %s", first.Code, first.Body)
				}
				b.kept(0, 0, left(o))
				b.is(b.send(h, sent{key: "k"}), http.StatusCreated, "")
				b.kept(2, 0, 1)
			})
		}
	}
}

// A request without a key runs in a transaction too.
func TestUnanswered_ARequestWithoutAKeyThatIsNotAnsweredIsNotKept(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			o.Optional = true
			h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) { b.halves(r.Context(), "debit") }, o)
			first := b.send(h, sent{})
			b.is(first, http.StatusServiceUnavailable, "")
			if retryable := problemOf(t, first)["retryable"]; retryable != (o.Lease == 0) { // Without a transaction it may have done something.
				t.Errorf("retryable: %v", retryable)
			}
			b.kept(0, 0, 0)
		})
	}
}
