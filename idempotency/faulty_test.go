package idempotency

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What can go wrong at a point of a request, and the pool that lets it go wrong.

// point is a place of a request's way: before or after its transaction with this statement is sent, or in the handler.
type point struct {
	name      string
	statement string // "" in the handler
	after     bool
	nth       int // time that it is met; 0 is the first
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
