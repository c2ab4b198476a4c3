package inbox

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What Postgres has leased to a worker when the stop comes, and the worker has not heard of yet, goes back at once: its
// keys do not wait until the lease runs out.
func TestAStopInTheMiddleOfAClaimLeavesNothingLeased(t *testing.T) {
	b := setup(t)
	ctx, stop := context.WithCancel(b.Context())
	slow := &slowClaim{stop: stop}
	config := b.db.Config().Copy()
	config.ConnConfig.Tracer = slow
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // The claim is one round trip, with nothing to prepare before.
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &slowReads{conn, slow}, nil
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	in := b.inboxOn(pool, func(c *Config) { c.Quick = -1 })
	in.Handle("order.placed", effectOf)
	if err := pgx.BeginFunc(b.Context(), b.db.Pool, func(tx pgx.Tx) error {
		for _, id := range []string{"1", "2", "3"} {
			if _, err := in.Store(b.Context(), tx, event(id, id)); err != nil {
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

// slowClaim stops the node when the answer to its first claim is on the way.
type slowClaim struct {
	armed, struck atomic.Bool
	once          sync.Once
	stop          context.CancelFunc
}

func (s *slowClaim) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "inbox.claim") && s.armed.CompareAndSwap(true, false) {
		s.struck.Store(true)
	}
	return ctx
}

func (s *slowClaim) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

type slowReads struct {
	net.Conn
	s *slowClaim
}

func (c *slowReads) Read(p []byte) (int, error) {
	if c.s.struck.Load() {
		c.s.once.Do(func() {
			time.Sleep(100 * time.Millisecond) // Postgres carries the claim out.
			c.s.stop()
			time.Sleep(100 * time.Millisecond) // The node hears of the stop.
		})
	}
	return c.Conn.Read(p)
}
