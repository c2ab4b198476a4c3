package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// The fault table: whatever happens at whatever point of a request, afterwards key, effect, event and answer are all
// there or none are, and repeats get one answer.

// point is a place of a request's way: before or after its transaction with this statement is sent, or in the handler.
type point struct {
	name      string
	statement string // "" in the handler
	after     bool
	nth       int // time that it is met; 0 is the first
}

var points = []point{
	{"before the look", "idempotency.lookup", false, 0},
	{"before the claim", "idempotency.open", false, 0},
	{"after the claim", "idempotency.open", true, 0},
	{"in the handler, before its effect", "", false, 0},
	{"in the handler, after its effect", "", true, 0},
	{"before the answer is stored", "idempotency.store", false, 0},
	{"after COMMIT", "idempotency.store", true, 0},
}

// fault is what happens there, once.
type fault struct {
	name string
	do   func(f *faulty)
}

var faults = []fault{
	{"an error", func(f *faulty) { f.fail.Store(true) }},
	{"a panic", func(f *faulty) { panic("planned") }},
	{"the client goes", func(f *faulty) { f.cancel() }},
	{"the backends die", func(f *faulty) {
		_, err := f.admin.Exec(context.Background(), `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and application_name = 'faulty'`)
		if err != nil {
			f.t.Error(err)
		}
	}},
	{"the reply is lost", func(f *faulty) { f.deaf.Store(true) }},
	{"the process ends", nil}, // in a process of its own: TestR18R21TheFaultTableOfProcesses
}

// faulty is a pool with one fault in it, as a tracer of its statements.
type faulty struct {
	t      testing.TB
	point  point
	fault  fault
	admin  *pgxpool.Pool
	cancel context.CancelFunc
	met    atomic.Int32
	armed  atomic.Bool
	fail   atomic.Bool // the next thing to be done fails
	deaf   atomic.Bool // nothing is read from the server any more
	cut    atomic.Bool // nobody reaches it
	struck atomic.Bool
}

func (f *faulty) at(statement string, after bool) {
	if f.armed.Load() && f.point.after == after && (statement == "" && f.point.statement == "" || f.point.statement != "" && strings.Contains(statement, f.point.statement)) {
		if int(f.met.Add(1)) == max(f.point.nth, 1) {
			f.struck.Store(true)
			f.fault.do(f)
		}
	}
}

type batchKey struct{}

func (f *faulty) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	var all strings.Builder
	for _, qq := range data.Batch.QueuedQueries {
		all.WriteString(qq.SQL)
	}
	f.at(all.String(), false)
	if f.fail.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
		f.fail.Store(false)
	}
	return context.WithValue(ctx, batchKey{}, all.String())
}
func (f *faulty) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (f *faulty) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	if all, ok := ctx.Value(batchKey{}).(string); ok && data.Err == nil {
		f.at(all, true)
	}
}
func (f *faulty) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	f.at(data.SQL, false)
	if f.fail.Load() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
		f.fail.Store(false)
	}
	return context.WithValue(ctx, batchKey{}, data.SQL)
}
func (f *faulty) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if sql, ok := ctx.Value(batchKey{}).(string); ok && data.Err == nil {
		f.at(sql, true)
	}
}

// deafConn loses what the server says while it is deaf: what was sent is carried out.
type deafConn struct {
	net.Conn
	f *faulty
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.f.cut.Load() {
		_ = c.Conn.Close()
		return 0, errors.New("planned: the network is cut")
	}
	if c.f.deaf.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
		return 0, errors.New("planned: the reply is lost")
	}
	return n, err
}

// faultyPool is the pool of a service with a fault, to the database of dsn.
func faultyPool(t testing.TB, dsn string, f *faulty) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	config.ConnConfig.Tracer = f
	config.ConnConfig.RuntimeParams["application_name"] = "faulty"
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if f.cut.Load() {
			return nil, errors.New("planned: the network is cut")
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &deafConn{conn, f}, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// faultyService is POST /charges on such a pool.
func faultyService(t testing.TB, pool *pgxpool.Pool, f *faulty) http.Handler {
	t.Helper()
	g, err := New(pool, Config{
		Principal: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		Acquire:   2 * time.Second, Logger: slog.New(slog.DiscardHandler),
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

// oracle asks until there is an answer, and then again: everything is there, once.
func (b *bundle) oracle(first *httptest.ResponseRecorder, key string) {
	b.Helper()
	h := faultyService(b, b.pool(4), &faulty{})
	var answer *httptest.ResponseRecorder
	b.eventually("a retry has an answer", func() bool {
		answer = b.send(h, sent{key: key})
		return answer.Code == http.StatusCreated
	})
	b.same(answer, b.send(h, sent{key: key}))
	if first != nil && first.Code == http.StatusCreated {
		b.same(first, answer)
	}
	b.kept(2, 2, 2) // with the one that warmed the connection
}

func TestR18R20TheFaultTable(t *testing.T) {
	for _, p := range points {
		for _, what := range faults {
			if what.do == nil || what.name == "a panic" && p.statement != "" { // Elsewhere there is no code of users'.
				continue
			}
			t.Run(p.name+", "+what.name, func(t *testing.T) {
				b := setup(t)
				b.strike(b.db.DSN, p, what)
			})
		}
	}
}

// strike sends one request with a fault in it to the database of dsn.
func (b *bundle) strike(dsn string, p point, what fault) (w *httptest.ResponseRecorder) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	f := &faulty{t: b, point: p, fault: what, admin: b.server.Pool, cancel: cancel}
	h := faultyService(b, faultyPool(b, dsn, f), f)
	b.is(b.send(h, sent{key: "warm"}), 201, "")
	f.armed.Store(true)
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
	b.oracle(w, "k")
	return w
}

const faultyChild = "HOLDFAST_IDEMPOTENCY_CHILD"

// runFaultyChild is the process that ends itself.
func runFaultyChild() {
	n := 0
	if _, err := fmt.Sscan(os.Getenv(faultyChild), &n); err != nil {
		panic(err)
	}
	f := &faulty{point: points[n], fault: fault{"the process ends", func(*faulty) { os.Exit(7) }}}
	t := &childT{}
	h := faultyService(t, faultyPool(t, os.Getenv(faultyChild+"_DSN"), f), f)
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

// childT is what there is of a test in the process that ends itself.
type childT struct{ testing.TB }

func (*childT) Helper()           {}
func (*childT) Cleanup(func())    {}
func (*childT) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func TestR18R21TheFaultTableOfProcesses(t *testing.T) {
	for i, p := range points {
		t.Run(p.name, func(t *testing.T) {
			b := setup(t)
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", faultyChild, i), faultyChild+"_DSN="+b.db.DSN)
			out, err := child.CombinedOutput()
			var ended *exec.ExitError
			if !errors.As(err, &ended) || ended.ExitCode() != 7 {
				t.Fatalf("the process ended otherwise: %v %.300s", err, out)
			}
			b.oracle(nil, "k")
			if n := pgtest.Count(t, b.db, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		})
	}
}
