package idempotency

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// stalling is a pool's tracer under which the n-th look, and what comes after it, lasts until its context ends.
type stalling struct {
	from  int32 // the look
	looks atomic.Int32
	on    atomic.Bool
}

func (s *stalling) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if s.on.Load() && (strings.Contains(data.SQL, "idempotency.lookup") || strings.Contains(data.SQL, "idempotency.peek")) && s.looks.Add(1) >= s.from {
		<-ctx.Done()
	}
	return ctx
}
func (s *stalling) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// R45.
func TestHostileBudget_ABudgetThatEndsDuringALookupIsAnsweredByWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Route
		from int32
		code int
		says string
	}{
		{"in a transaction, at the first look after the lock was not free", Route{}, 1, 409, codeInProgress},
		{"in a transaction, while it waits", Route{}, 2, 409, codeInProgress},
		{"under a lease, while it waits", Route{Lease: 30 * time.Second}, 2, 409, codeInProgress},
		{"under a lease, before anything is known", Route{Lease: 30 * time.Second}, 1, 503, codeStoreUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			tracer := &stalling{from: c.from}
			entered, end := make(chan struct{}, 1), make(chan struct{})
			letGo := sync.OnceFunc(func() { close(end) })
			defer letGo()
			c.o.Wait = time.Minute
			handler := func(w http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				<-end
				w.WriteHeader(201)
			}
			another, h := b.service(b.guard(), handler, c.o), b.service(b.guardOn(b.traced(tracer)), handler, c.o) // two nodes
			first := make(chan int, 1)
			go func() { first <- b.send(another, sent{key: "k"}).Code }()
			<-entered
			tracer.on.Store(true)
			ask := func() *httptest.ResponseRecorder {
				return b.send(h, sent{key: "k", header: http.Header{"X-Request-Timeout": {"3"}}})
			}
			w := ask()
			for try := 1; tracer.looks.Load() < c.from && try < 10; try++ { // a busy machine did not come so far in 3 s
				tracer.looks.Store(0)
				w = ask()
			}
			if b.is(w, c.code, c.says); w.Header().Get("Retry-After") != "1" {
				t.Errorf("got %v", w.Header())
			}
			if tracer.looks.Load() < c.from {
				t.Error("it never came so far")
			}
			tracer.on.Store(false)
			letGo()
			if code := <-first; code != 201 {
				t.Errorf("the first got %d", code)
			}
		})
	}
}
