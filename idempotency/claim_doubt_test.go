package idempotency

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// Postgres carries a claim out, its answer is lost, and then nobody can be asked. Where the request was kept it will be run
// yet: the client must not be told that nothing was done.
func TestAClaimThatNobodyCanAskAboutIsNotCalledNothingWhereItsRequestIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		route Route
		code  string
	}{
		"kept":     {completed(), CodeOutcomeUnknown},
		"not kept": {Route{Lease: aLease, Operation: "sell"}, CodeStoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			gone := &goneAtClaim{}
			config := b.db.Config().Copy()
			config.ConnConfig.Tracer = gone
			config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // The claim is one round trip, with nothing to prepare before.
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if gone.gone.Load() {
					return nil, errors.New("nobody is there")
				}
				conn, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &goneReads{conn, gone}, nil
			}
			g := b.guardOn(b.poolOf(config), soon(10))
			ran := 0
			h := b.service(g, func(w http.ResponseWriter, _ *http.Request) { ran++; w.WriteHeader(http.StatusCreated) }, c.route)
			gone.armed.Store(true)
			b.is(b.send(h, sent{key: "k"}), http.StatusServiceUnavailable, c.code)
			if !gone.gone.Load() || ran > 0 {
				t.Fatalf("there was no claim, or its handler ran (%d): the test tests nothing", ran)
			}
			if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending'"); n != 1 {
				t.Errorf("%d keys are claimed, want 1: the test tests nothing", n)
			}
		})
	}
}

// goneAtClaim loses the answer to a claim, and every connection from then on.
type goneAtClaim struct{ armed, struck, gone atomic.Bool }

func (s *goneAtClaim) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "idempotency.claim") && s.armed.CompareAndSwap(true, false) {
		s.struck.Store(true)
	}
	return ctx
}

func (s *goneAtClaim) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

type goneReads struct {
	net.Conn
	s *goneAtClaim
}

func (c *goneReads) Read(p []byte) (int, error) {
	switch {
	case c.s.struck.CompareAndSwap(true, false):
		if n, err := c.Conn.Read(p); err != nil { // Postgres has carried the claim out.
			return n, err
		}
		c.s.gone.Store(true)
		fallthrough
	case c.s.gone.Load():
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Read(p)
}
