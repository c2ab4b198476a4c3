package rights

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
)

// inTurns runs each case in turn, in many short rounds, and reports the processor time that the backend of each case used by that of
// the first. pids are the backends' processes, which must be of this machine.
func inTurns(b *testing.B, rounds int, names []string, pids map[string]int64, run func(name string)) {
	b.Helper()
	took := map[string][]float64{}
	for round := range rounds + 1 {
		for _, name := range names {
			before := onCPU(b, pids[name])
			run(name)
			if round > 0 { // the first one warms up
				took[name] = append(took[name], onCPU(b, pids[name])-before)
			}
		}
	}
	for _, name := range names {
		b.ReportMetric(median(took[name])/median(took[names[0]]), strings.ReplaceAll(name, " ", "_")+"/x")
	}
	b.ReportMetric(median(took[names[0]])/1000, "us_of_a_round")
	b.ReportMetric(0, "ns/op")
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// onCPU is how long a process has run, in nanoseconds.
func onCPU(b *testing.B, pid int64) float64 {
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

// BenchmarkBindingsOfProducers compares append_one without the question producers_bound() with what it is: nobody bound, another
// bound, this user bound. The server runs the calls in a loop, so that it does little else.
//
//	go test ./rig/rights -run none -bench BindingsOfProducers -benchtime 1x
func BenchmarkBindingsOfProducers(b *testing.B) {
	db := migrated.New(b)
	prefix := roletest.Make(b, db)
	var source string
	if err := db.QueryRow(b.Context(), "select pg_get_functiondef('holdfast.append_one'::regproc)").Scan(&source); err != nil {
		b.Fatal(err)
	}
	before, rest, _ := strings.Cut(source, `    if "holdfast".producers_bound() then`)
	_, after, found := strings.Cut(rest, "    end if;\n")
	if !found {
		b.Fatal("append_one does not ask producers_bound")
	}
	pgtest.Exec(b, db.Pool, strings.Replace(before+after, ".append_one(", ".append_plain(", 1))
	pgtest.Exec(b, db.Pool, "grant execute on function holdfast.append_plain to public")
	pool, user := roletest.Login(b, db, "", prefix+"_producer")
	_, other := roletest.Login(b, db, "", prefix+"_producer")
	conn, err := pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	pid := pgtest.Count(b, conn, "select pg_backend_pid()")
	inTurns(b, 40, []string{"plain", "nobody bound", "another bound", "bound"}, map[string]int64{"plain": pid, "nobody bound": pid, "another bound": pid, "bound": pid}, func(name string) {
		pgtest.Exec(b, db.Pool, "truncate holdfast.producer_binding")
		call := "append_one"
		switch name {
		case "plain":
			call = "append_plain"
		case "another bound":
			pgtest.Exec(b, db.Pool, "insert into holdfast.producer_binding (role, topic) select $1, 'topic.' || n from generate_series(1, 5) n", other)
		case "bound":
			pgtest.Exec(b, db.Pool, "insert into holdfast.producer_binding (role, topic, source) values ($1, 'orders', 'shop'), ($1, 'mail', '*')", user)
		}
		tx, err := conn.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		pgtest.Exec(b, tx, fmt.Sprintf(`do $$ begin for n in 1..500 loop perform holdfast.%s(n::text, 'shop', 't', 'orders', n::text, null, '{"a": "b"}', '\x00'); end loop; end $$`, call))
		_ = tx.Rollback(context.Background())
		pgtest.Exec(b, db.Pool, "truncate only holdfast.event_0")
	})
}

// BenchmarkBindingsOfConsumers compares what Receive costs Postgres, its commit included, without a binding, for a user who is not bound
// while another is, and for one who is.
//
//	go test ./rig/rights -run none -bench BindingsOfConsumers -benchtime 1x
func BenchmarkBindingsOfConsumers(b *testing.B) {
	db := migrated.New(b)
	prefix := roletest.Make(b, db)
	pools, users, pids := map[string]*pgxpool.Pool{}, map[string]string{}, map[string]int64{}
	for _, name := range []string{"nobody bound", "another bound", "bound"} {
		_, users[name] = roletest.Login(b, db, "", prefix+"_consumer")
		pools[name] = db.PoolWith(b, func(c *pgxpool.Config) {
			c.ConnConfig.User, c.ConnConfig.Password, c.MaxConns, c.MinConns, c.MaxConnLifetime = users[name], "secret", 1, 1, time.Hour
		})
		pids[name] = pgtest.Count(b, pools[name], "select pg_backend_pid()")
	}
	id := 0
	inTurns(b, 40, []string{"nobody bound", "another bound", "bound"}, pids, func(name string) {
		pgtest.Exec(b, db.Pool, "truncate holdfast.consumer_binding")
		if name != "nobody bound" {
			roletest.BindConsumer(b, db, users["bound"], "billing", "")
		}
		in, err := inbox.New(pools[name], inbox.Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			b.Fatal(err)
		}
		in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
		for range 150 {
			id++
			if got, err := in.Receive(b.Context(), holdfast.Event{ID: fmt.Sprint(id), Source: "shop", Topic: "orders", Type: "t", Key: fmt.Sprint(id)}); err != nil || got != inbox.Handled {
				b.Fatal(got, err)
			}
		}
	})
}
