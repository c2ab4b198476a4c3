package inbox

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What Postgres has leased to a worker when the stop comes, and the worker has not heard of yet, goes back at once: its
// keys do not wait until the lease runs out.
func TestClaimStop_AStopInTheMiddleOfAClaimLeavesNothingLeased(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	ctx, stop := context.WithCancel(b.Context())
	slow, pool := b.struckAt("inbox.claim", func(statement context.Context, conn net.Conn, p []byte) (int, error) {
		wait.Until(t, "Postgres carries the claim out", func() bool {
			return b.count("select count(*) from holdfast.stored where lease_until > now()") == 3
		})
		stop()
		if statement.Err() != nil { // pgx does not wait for the answer to a statement whose context has ended.
			return 0, os.ErrDeadlineExceeded
		}
		return conn.Read(p)
	})
	in := b.inboxOn(pool, func(c *Config) { c.ImmediateRetries = -1 })
	in.Handle("order.placed", effectOf)
	if err := pgx.BeginFunc(b.Context(), b.db.Pool, func(tx pgx.Tx) error {
		for _, id := range []string{"1", "2", "3"} {
			if _, err := in.StoreTx(b.Context(), tx, event(id, id)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slow.armed.Store(true)
	if err := in.Run(ctx); err != nil {
		t.Error(err)
	}
	if !slow.struck.Load() {
		t.Fatal("the stop did not come in the middle of a claim")
	}
	if n := b.count("select count(*) from holdfast.stored where lease_until > now()"); n != 0 {
		t.Errorf("%d events are leased to a node that has ended", n)
	}
	if n := b.count("select count(*) from holdfast.stored where attempts > 0"); n != 0 {
		t.Errorf("%d events have lost an attempt", n)
	}
	other := b.inbox()
	other.Handle("order.placed", effectOf)
	b.run(other.Run)
	for _, id := range []string{"1", "2", "3"} {
		b.awaitOutcome(id, Handled)
	}
}

// struckStatement is a fault on the way back of one statement, the first after it is armed.
type struckStatement struct {
	statement           string
	armed, sent, struck atomic.Bool
	ctx                 context.Context // of the statement
	read                struckRead
}

// struckRead is called when the statement has been sent, and its answer is about to be read.
type struckRead func(statement context.Context, conn net.Conn, p []byte) (int, error)

// struckAt is a pool with such a fault.
func (b *bundle) struckAt(statement string, read struckRead) (*struckStatement, *pgxpool.Pool) {
	b.Helper()
	s := &struckStatement{statement: statement, read: read}
	config := b.db.Config().Copy()
	config.ConnConfig.Tracer = s
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // The statement is one round trip, with nothing to prepare before.
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &struckReads{conn, s}, nil
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return s, pool
}

func (s *struckStatement) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.send(ctx, data.SQL)
	return ctx
}

// TraceBatchStart takes a batch for its last statement.
func (s *struckStatement) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	s.send(ctx, data.Batch.QueuedQueries[data.Batch.Len()-1].SQL)
	return ctx
}

func (s *struckStatement) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (s *struckStatement) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (s *struckStatement) send(ctx context.Context, sql string) {
	if strings.Contains(sql, "-- "+s.statement+"\n") && s.armed.CompareAndSwap(true, false) {
		s.ctx = ctx
		s.sent.Store(true)
	}
}

func (s *struckStatement) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

type struckReads struct {
	net.Conn
	s *struckStatement
}

func (s *struckReads) Read(p []byte) (int, error) {
	if s.s.sent.CompareAndSwap(true, false) {
		s.s.struck.Store(true)
		return s.s.read(s.s.ctx, s.Conn, p)
	}
	return s.Conn.Read(p)
}
