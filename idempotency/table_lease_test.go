package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// The fault table of lease mode: whatever happens at whatever point of a request, after a retry the provider has charged
// once, each step's rows are there once, the event too, and there is one answer.

var leasePoints = []point{
	{"before the look", "idempotency.lookup", false, 0},
	{"before the claim", "idempotency.claim", false, 0},
	{"after the claim", "idempotency.claim", true, 0},
	{"at the handler's beginning", "sale: begin", false, 0},
	{"before the first step begins", "idempotency.step_open", false, 0},
	{"after the first step began", "idempotency.step_open", true, 0},
	{"in the first step", "sale: in order", false, 0},
	{"before the first step commits", "idempotency.step_done", false, 0},
	{"after the first step's COMMIT", "idempotency.step_done", true, 0},
	{"before the provider's call", "sale: before the call", false, 0},
	{"after the provider's call", "sale: after the call", false, 0},
	{"before the second step begins", "idempotency.step_open", false, 2},
	{"before the second step commits", "idempotency.step_done", false, 2},
	{"after the second step's COMMIT", "idempotency.step_done", true, 2},
	{"at the handler's end", "sale: end", false, 0},
	{"before the answer is stored", "idempotency.finish", false, 0},
	{"after the answer is stored", "idempotency.finish", true, 0},
}

// leaseService is POST /charges under a lease on the pool of a fault.
func leaseService(t testing.TB, pool *pgxpool.Pool, f *faulty, provider string, change ...func(*Route)) http.Handler {
	t.Helper()
	g, err := New(pool, Config{
		Principal: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		Acquire:   2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Route{Lease: aLease}
	for _, c := range change {
		c(&o)
	}
	mux := http.NewServeMux()
	mux.Handle("/charges", g.Route(o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sellCharge(w, r, provider, func(place string) error {
			f.at("sale: "+place, false)
			if f.fail.CompareAndSwap(true, false) {
				return errors.New("planned")
			}
			return nil
		})
	})))
	return mux
}

// soldOnce asks until there is an answer, and then again: everything is there, once.
func (b *till) soldOnce(first *httptest.ResponseRecorder, key string) {
	b.Helper()
	h := leaseService(b, b.pool(4), &faulty{}, b.provider.URL)
	var answer *httptest.ResponseRecorder
	b.eventually("a retry has an answer", func() bool {
		answer = b.send(h, sent{key: key})
		return answer.Code == http.StatusCreated
	})
	b.same(answer, b.send(h, sent{key: key}))
	if first != nil && first.Code == http.StatusCreated {
		b.same(first, answer)
	}
	b.sold(2) // with the one that warmed the connection
}

func TestR40TheFaultTableOfLeases(t *testing.T) {
	for _, p := range leasePoints {
		for _, what := range faults {
			ours := strings.HasPrefix(p.statement, "idempotency.")
			if what.do == nil || what.name == "a panic" && ours { // There is no code of users' there.
				continue
			}
			t.Run(p.name+", "+what.name, func(t *testing.T) {
				b := openTill(t)
				b.strikeLease(b.db.DSN, p, what)
			})
		}
	}
}

// strikeLease sends one request with a fault in it to the database of dsn.
func (b *till) strikeLease(dsn string, p point, what fault) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	f := &faulty{t: b, point: p, fault: what, admin: b.server.Pool, cancel: cancel}
	h := leaseService(b, faultyPool(b, dsn, f), f, b.provider.URL)
	b.is(b.send(h, sent{key: "warm"}), 201, "")
	f.armed.Store(true)
	var w *httptest.ResponseRecorder
	func() {
		defer func() {
			if p := recover(); p != nil && p != "planned" {
				panic(p)
			}
		}()
		w = b.send(h, sent{key: "k", ctx: ctx})
	}()
	if !f.struck.Load() {
		b.Fatal("the fault did not happen")
	}
	if w != nil && w.Code != 201 && w.Code != 503 && w.Code != 500 {
		b.Errorf("the first try got %d %s", w.Code, w.Body)
	}
	f.armed.Store(false)
	f.deaf.Store(false)
	b.soldOnce(w, "k")
}

func TestALostReplyIsLookedUpAndTheRequestGoesOn(t *testing.T) {
	for _, p := range leasePoints {
		switch p.statement {
		case "idempotency.claim", "idempotency.step_done", "idempotency.finish":
		default:
			continue
		}
		if p.after {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			b := openTill(t)
			f := &faulty{t: b, point: p, fault: fault{"the reply is lost", func(f *faulty) { f.deaf.Store(true) }}}
			h := leaseService(b, faultyPool(b, b.db.DSN, f), f, b.provider.URL)
			b.is(b.send(h, sent{key: "warm"}), 201, "")
			f.armed.Store(true)
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if !f.struck.Load() {
				t.Error("the fault did not happen")
			}
			b.sold(2)
		})
	}
}

const leaseChild = "HOLDFAST_IDEMPOTENCY_LEASE_CHILD"

// runLeaseChild is the process that ends itself under a lease.
func runLeaseChild() {
	n := 0
	if _, err := fmt.Sscan(os.Getenv(leaseChild), &n); err != nil {
		panic(err)
	}
	f := &faulty{point: leasePoints[n], fault: fault{"the process ends", func(*faulty) { os.Exit(7) }}}
	t := &childT{}
	h := leaseService(t, faultyPool(t, os.Getenv(faultyChild+"_DSN"), f), f, os.Getenv(leaseChild+"_PROVIDER"), func(o *Route) {
		o.Operation, o.Complete = os.Getenv(leaseChild+"_OPERATION"), asItIs
	})
	for i, key := range []string{"warm", "k"} {
		f.armed.Store(i == 1)
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(`{"amount": 10}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Account", "a")
		r.Header.Set("Idempotency-Key", key)
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	os.Exit(1) // It should not have come this far.
}

// endAt lets a process end at a point of a request with the key k.
func (b *till) endAt(point int, operation string) {
	b.Helper()
	child := exec.CommandContext(b.Context(), os.Args[0])
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", leaseChild, point), faultyChild+"_DSN="+b.db.DSN, leaseChild+"_PROVIDER="+b.provider.URL, leaseChild+"_OPERATION="+operation)
	out, err := child.CombinedOutput()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 7 {
		b.Fatalf("the process ended otherwise: %v %.300s", err, out)
	}
}

func TestR40TheFaultTableOfProcessesUnderALease(t *testing.T) {
	for i, p := range leasePoints {
		t.Run(p.name+", the client tries again", func(t *testing.T) {
			b := openTill(t)
			b.endAt(i, "POST /charges")
			b.soldOnce(nil, "k")
		})
		t.Run(p.name+", nobody tries again", func(t *testing.T) {
			b := openTill(t)
			b.endAt(i, "POST /charges")
			g := b.guard(func(c *Config) { c.Completion.Base, c.Completion.Cap = time.Millisecond, 10*time.Millisecond })
			h := b.sell(g, Route{Lease: aLease, Operation: "POST /charges", Complete: asItIs})
			if i < 2 { // There was no claim: nothing was begun.
				b.sold(1)
				return
			}
			pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
			b.eventually("it is completed", func() bool {
				if _, err := g.CompleteOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'complete'") == 2
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			b.sold(2)
		})
	}
}
