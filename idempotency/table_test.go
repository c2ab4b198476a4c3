package idempotency

import (
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The fault table: whatever happens at whatever point of a request, afterwards key, effect, event and answer are all
// there or none are, and repeats get one answer.

var points = []point{
	{"before the look", "idempotency.lookup", false, 0},
	{"before the claim", "idempotency.open", false, 0},
	{"after the claim", "idempotency.open", true, 0},
	{"in the handler, before its effect", "", false, 0},
	{"in the handler, after its effect", "", true, 0},
	{"before the answer is stored", "idempotency.store", false, 0},
	{"after COMMIT", "idempotency.store", true, 0},
}

// charging is POST /charges in one transaction.
func (b *bundle) charging() target {
	return target{name: "charge", points: points, service: faultyService, there: func(n int64) { b.Helper(); b.kept(n, n, n) }}
}

func faultyService(t testing.TB, pool *pgxpool.Pool, f *faulty) http.Handler {
	t.Helper()
	g, err := New(pool, Config{
		Principal:      func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		AcquireTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/charges", g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.at("", false)
		id, err := insertCharge(r.Context(), "10")
		f.at("", true)
		if err != nil || f.fail.CompareAndSwap(true, false) {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", id)
	})))
	return mux
}

// R18, R20.
func TestTable_TheFaultTable(t *testing.T) {
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			b := setup(t)
			for _, what := range faults {
				if what.name == "a panic" && p.statement != "" { // Elsewhere there is no code of users'.
					continue
				}
				if !t.Run(what.name, func(t *testing.T) {
					b := b.in(t)
					w := b.strike(b.charging(), b.db.DSN, p, what)
					if p.name == "before the claim" && what.name == "the backends die" && w.Code != 503 && (b.db == b.server || w.Code != 201) { // A pooler may take another backend.
						t.Errorf("nothing was begun, and it got %d %s", w.Code, w.Body)
					}
				}) {
					return // What it left would be counted with the next one's.
				}
			}
		})
	}
}

// R18, R21.
func TestTable_TheFaultTableOfProcesses(t *testing.T) {
	for i, p := range points {
		t.Run(p.name, func(t *testing.T) {
			b := setup(t)
			b.endAt(b.charging(), i)
			b.settle(b.charging(), nil, 0)
			if n := pgtest.Count(t, b.db, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		})
	}
}
