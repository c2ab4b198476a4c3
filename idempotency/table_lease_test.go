package idempotency

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
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

// sellOperation is what the service of a fault does, by the name that its route has from the mux.
const sellOperation = "POST /charges"

// selling is POST /charges under a lease.
func (ti *till) selling(change ...func(*Route)) target {
	return target{name: "sell", points: leasePoints, there: func(n int64) { ti.Helper(); ti.sold(n) },
		service: func(t testing.TB, pool *pgxpool.Pool, f *faulty) http.Handler {
			t.Helper()
			return leaseService(t, pool, f, ti.provider.URL, change...)
		}}
}

func leaseService(t testing.TB, pool *pgxpool.Pool, f *faulty, provider string, change ...func(*Route)) http.Handler {
	t.Helper()
	g, err := New(pool, Config{
		Principal:      func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		AcquireTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
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

// in is the till of a subtest that shares its test's database.
func (ti *till) in(t *testing.T) *till { return &till{bundle: ti.bundle.in(t), provider: ti.provider} }

// R40.
func TestTableLease_TheFaultTableOfLeases(t *testing.T) {
	for _, p := range leasePoints {
		t.Run(p.name, func(t *testing.T) {
			b := openTill(t)
			for _, what := range faults {
				if what.name == "a panic" && strings.HasPrefix(p.statement, "idempotency.") { // There is no code of users' there.
					continue
				}
				if !t.Run(what.name, func(t *testing.T) {
					b := b.in(t)
					b.strike(b.selling(), b.db.DSN, p, what)
				}) {
					return // What it left would be counted with the next one's.
				}
			}
		})
	}
}

func TestTableLease_ALostReplyIsLookedUpAndTheRequestGoesOn(t *testing.T) {
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
			h := leaseService(b, faultyPool(b, b.db.DSN, f), f, b.provider.URL, func(o *Route) { o.Lease = 30 * time.Second })
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

// R40.
func TestTableLease_TheFaultTableOfProcessesUnderALease(t *testing.T) {
	for i, p := range leasePoints {
		t.Run(p.name, func(t *testing.T) {
			b := openTill(t)
			t.Run("the client tries again", func(t *testing.T) {
				b := b.in(t)
				b.endAt(b.selling(), i, endingProvider+"="+b.provider.URL)
				b.lapse() // That one waits for it is TestLease_AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut.
				b.settle(b.selling(), nil, 0)
			})
			t.Run("nobody tries again", func(t *testing.T) {
				b := b.in(t)
				before := b.effects()
				b.endAt(b.selling(), i, endingProvider+"="+b.provider.URL)
				g := b.guard(func(c *Config) { c.Completion.Base, c.Completion.Cap = time.Millisecond, 10*time.Millisecond })
				h := b.sell(g, Route{Lease: aLease, Operation: sellOperation, Complete: asItIs})
				if i < 2 { // There was no claim: nothing was begun.
					b.sold(before + 1)
					return
				}
				b.lapse()
				pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
				wait.Until(b, "it is completed", func() bool {
					if _, err := g.CompleteOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
					return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'complete'") == before+2
				})
				b.is(b.send(h, sent{key: "k", account: t.Name()}), 201, "")
				b.sold(before + 2)
			})
		})
	}
}
