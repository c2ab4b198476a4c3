package relay

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// BenchmarkRead reads a backlog of 100,000 events of 8 lanes, and reports the processor time of Postgres's backend for
// each. The server must be of this machine.
//
//	go test ./relay -run '^$' -bench 'Read$' -benchtime 10x
func BenchmarkRead(b *testing.B) {
	const lanes, events, writers = 8, 100_000, 16
	db := migrated.Lanes(b, lanes)
	type start struct{ done, token string }
	var from start
	if err := db.QueryRow(b.Context(), "select l.done::text, i.token from holdfast.lane l, holdfast.current_incarnation i where lane = 0").Scan(&from.done, &from.token); err != nil {
		b.Fatal(err)
	}
	pool := db.PoolOf(b, writers)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for written := 0; written < events/writers; {
				batch := make([]holdfast.Event, min(1+r.IntN(10), events/writers-written))
				for i := range batch {
					batch[i] = holdfast.Event{Topic: "orders", Source: "shop/orders", Type: "order.placed", Key: fmt.Sprintf("order-%05d", r.IntN(10_000)), Payload: []byte(`{"note":"` + strings.Repeat("x", 288) + `"}`)}
				}
				tx, err := pool.Begin(b.Context())
				if err == nil {
					err = outbox.Write(b.Context(), tx, batch...)
				}
				if err == nil {
					err = tx.Commit(b.Context())
				}
				if err != nil {
					b.Error(err)
					return
				}
				written += len(batch)
			}
		})
	}
	group.Wait()
	pgtest.Exec(b, db.Pool, "analyze")
	if b.Failed() {
		return
	}
	reading := db.PoolWith(b, func(c *pgxpool.Config) { c.MaxConns = 1 })
	var pid int
	if err := reading.QueryRow(b.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
		b.Fatal(err)
	}
	var postgres float64
	once := func() {
		before := onCPU(b, pid)
		read := 0
		for lane := range lanes {
			r := &logReader{pool: interpreted{plain.Pool{Pool: reading}}, sql: sqlschema.For("holdfast"), limit: 2000, bytes: usualBounds.pageBytes, places: usualBounds.places, span: 2000 * lanes * 4 / 5, now: time.Now, lane: lane, token: from.token}
			r.at = startReading(cursor{done: from.done})
			for {
				p, err := r.next(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if read += len(p.events); p.last {
					break
				}
			}
		}
		if read != events {
			b.Fatalf("%d events were read of %d", read, events)
		}
		postgres += onCPU(b, pid) - before
	}
	once()
	postgres = 0
	for b.Loop() {
		once()
	}
	b.ReportMetric(postgres/1000/events/float64(b.N), "us-of-postgres/event")
	b.ReportMetric(0, "ns/op")
}

// onCPU is how long a process has run, in nanoseconds.
func onCPU(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Fatalf("read the processor time of the backend, which must be of this machine: %v", err)
	}
	ns, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return ns
}
