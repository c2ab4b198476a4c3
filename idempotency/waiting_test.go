package idempotency

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What requests that wait, and clients that read slowly, cost others.

// counter counts statements.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { c.n.Add(1) }
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// However many requests wait for a key, on the node where the first one runs and on another one, they look at it five times
// a second at most, all together.
func TestWaiting_RequestsThatWaitLookAtTheirKeyTogether(t *testing.T) {
	skip.InShort(t, "it judges a rate over seconds")
	type row struct {
		mode    string
		waiters int // of each of two nodes
	}
	var rows []row
	for mode := range modes {
		rows = append(rows, row{mode, 50}, row{mode, 200})
	}
	for _, row := range rows {
		mode, o, waiters := row.mode, modes[row.mode], row.waiters
		t.Run(fmt.Sprint(mode, ", ", 2*waiters, " waiters"), func(t *testing.T) {
			b := setup(t)
			entered, out := make(chan struct{}, 1), make(chan struct{})
			letGo := sync.OnceFunc(func() { close(out) })
			defer letGo()
			handler := func(w http.ResponseWriter, r *http.Request) {
				b.runs.Add(1)
				entered <- struct{}{}
				<-out
				w.WriteHeader(http.StatusCreated)
			}
			o.Wait = time.Minute
			statements := &counter{}
			here, there := b.guardOn(b.traced(statements)), b.guardOn(b.traced(statements))
			nodes := []http.Handler{b.service(here, handler, o), b.service(there, handler, o)}
			answers := make(chan *httptest.ResponseRecorder, 1+2*waiters)
			go func() { answers <- b.send(nodes[0], sent{key: "k"}) }()
			<-entered
			for range waiters {
				for _, node := range nodes {
					go func() { answers <- b.send(node, sent{key: "k"}) }()
				}
			}
			for _, g := range []*Guard{here, there} {
				wait.Until(t, "all wait", func() bool { return g.waiters.waiting.Load() == int64(waiters) })
			}
			time.Sleep(2 * time.Second) // sleep: the requests themselves cost statements, and the first looks are quicker
			before, began := statements.n.Load(), time.Now()
			time.Sleep(4 * time.Second) // sleep: what they cost is counted for a while
			n, took := statements.n.Load()-before, time.Since(began)
			if perSecond := float64(n) / took.Seconds(); perSecond > 5 {
				t.Errorf("%.1f statements a second", perSecond)
			}
			before, began = statements.n.Load(), time.Now()
			letGo()
			for range 1 + 2*waiters {
				if w := <-answers; w.Code != http.StatusCreated {
					t.Fatalf("got %d %s", w.Code, w.Body)
				}
			}
			if n := statements.n.Load() - before; n > 40 {
				t.Errorf("%d statements until all had their answer", n)
			}
			t.Logf("all had their answer after %s", time.Since(began).Round(time.Millisecond))
			if n := b.runs.Load(); n != 1 {
				t.Errorf("the handler ran %d times", n)
			}
			if len(here.waiters.of)+len(there.waiters.of) != 0 {
				t.Error("groups of waiters are left")
			}
		})
	}
}

// Those who wait get the answer when the request of their own process ends, not at the next look.
func TestWaiting_ARequestThatWaitsIsAnsweredWhenTheFirstOneEnds(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	g := b.guard()
	g.random = func() float64 { t.Error("it made a pause between looks"); return 0 }
	h := b.service(g, handler, Route{Wait: time.Minute})
	answers := make(chan int, 2)
	for range 2 {
		go func() { answers <- b.send(h, sent{key: "k"}).Code }()
	}
	<-entered
	wait.Until(t, "the other waits", func() bool { return g.waiters.waiting.Load() == 1 })
	letGo()
	for range 2 {
		if code := <-answers; code != http.StatusCreated {
			t.Errorf("got %d", code)
		}
	}
}

// Each one that waits compares its own request with the answer.
func TestWaiting_AnotherRequestThatWaitsIsAMismatch(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	g := b.guard()
	h := b.service(g, handler, Route{Wait: time.Minute})
	first, others := make(chan int, 1), make(chan int, 4)
	go func() { first <- b.send(h, sent{key: "k"}).Code }()
	<-entered
	for i := range 4 {
		go func() { others <- b.send(h, sent{key: "k", body: fmt.Sprint(`{"amount": `, 10+i%2, `}`)}).Code }()
	}
	wait.Until(t, "they wait", func() bool { return g.waiters.waiting.Load() == 4 })
	letGo()
	codes := map[int]int{<-first: 1}
	for range 4 {
		codes[<-others]++
	}
	if codes[201] != 3 || codes[409] != 2 {
		t.Errorf("got %v", codes)
	}
	b.kept(1, 1, 1)
}

// A request that stops waiting hands its turn on, and one that panics does, too.
func TestWaiting_WhoStopsWaitingHoldsNobodyUp(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	var wg sync.WaitGroup
	in, out := make(chan struct{}), make(chan struct{})
	g := b.guard()
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		if b.runs.Load() == 0 && r.Header.Get("Panics") != "" {
			in <- struct{}{}
			<-out
			panic(http.ErrAbortHandler)
		}
		b.charge(w, r)
	}, Route{Wait: time.Minute})
	wg.Go(func() {
		defer func() { _ = recover() }()
		b.send(h, sent{key: "k", header: http.Header{"Panics": {"yes"}}})
	})
	<-in
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { b.is(b.send(h, sent{key: "k", ctx: ctx}), 409, codeInProgress) })
	wait.Until(t, "it waits", func() bool { return g.waiters.waiting.Load() == 1 })
	cancel()
	wait.Until(t, "it waits no more", func() bool { return g.waiters.waiting.Load() == 0 })
	wg.Go(func() { b.is(b.send(h, sent{key: "k"}), 201, "") })
	wait.Until(t, "another waits", func() bool { return g.waiters.waiting.Load() == 1 })
	close(out)
	wg.Wait()
	b.kept(1, 1, 1)
}

// Clients that read slowly, or not at all, hold no connection of the pool.
func TestWaiting_AReplayThatIsReadSlowlyHoldsNoConnection(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			const slow = 4
			large := strings.Repeat("x", 20<<20) // more than the kernel's buffers hold
			o.MaxResponse = 32 << 20
			answer := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, large) }
			first := b.service(b.guard(), answer, o)
			for i := range slow {
				// A machine that is busy may take longer to store 20 MiB than a request waits for, and the answer is that nobody knows.
				wait.Until(t, "the answer is stored", func() bool { return b.send(first, sent{key: fmt.Sprint("k", i)}).Code == 200 })
			}
			before := len(b.results())
			g := b.guardOn(b.pool(slow), func(c *Config) { c.AcquireTimeout = 30 * time.Second })
			routes := map[string]http.Handler{} // which have not met a repeat
			for i := range slow {
				routes[fmt.Sprint("k", i)] = b.service(g, answer, o)
			}
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				routes[r.Header.Get("Idempotency-Key")].ServeHTTP(w, r)
			}))
			defer s.CloseClientConnections()
			for i := range slow {
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(conn, "POST /charges HTTP/1.1\r\nHost: example.com\r\nAccount: a\r\nContent-Type: application/json\r\nIdempotency-Key: k%d\r\nContent-Length: 14\r\n\r\n{\"amount\": 10}", i)
			}
			wait.Until(t, "all replays are sent", func() bool { return len(b.results()) == before+slow })
			b.is(b.send(b.service(g, b.charge), sent{key: "another"}), 201, "")
		})
	}
}
