package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// cutter is a proxy to Postgres that swallows the answer to a COMMIT: it forwards the statement, waits until Postgres
// has answered, and closes the client's connection instead of passing the answer on.
type cutter struct {
	armed atomic.Bool
	cuts  atomic.Int64
}

func (c *cutter) pool(b *bundle, tracers ...pgx.QueryTracer) *pgxpool.Pool {
	u, err := url.Parse(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = listener.Close() })
	backend := u.Host
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", backend)
			if err != nil {
				_ = client.Close()
				continue
			}
			var cut atomic.Bool
			pipe := func(from, to net.Conn, outward bool) {
				defer from.Close()
				defer to.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := from.Read(buf)
					if n > 0 {
						if outward && strings.Contains(string(buf[:n]), "commit\x00") && c.armed.CompareAndSwap(true, false) {
							cut.Store(true)
						}
						if !outward && cut.Load() {
							c.cuts.Add(1)
							return
						}
						if _, err := to.Write(buf[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}
			go pipe(client, server, true)
			go pipe(server, client, false)
		}
	}()
	u.Host = listener.Addr().String()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		b.Fatal(err)
	}
	for _, tracer := range tracers {
		config.ConnConfig.Tracer = tracer
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func TestCommit_ACommitWithoutAnAnswerIsLookedUpAndNotRunTwice(t *testing.T) {
	b := setup(t)
	var proxy cutter
	in := b.inboxOn(proxy.pool(b))
	runs := 0
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		runs++
		proxy.armed.Store(true)
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Handled)
	if runs != 1 || b.effects("1") != 1 || proxy.cuts.Load() != 1 {
		t.Errorf("%d runs, %d effects, %d cuts; want 1 each", runs, b.effects("1"), proxy.cuts.Load())
	}
}

func TestCommit_ACommitThatCannotBeLookedUpIsUnknown(t *testing.T) {
	b := setup(t)
	var proxy cutter
	pool := proxy.pool(b)
	in := b.inboxOn(pool)
	ctx, cancel := context.WithCancel(b.Context())
	in.c.Observer.OnError = func(error) { cancel() } // the first trouble is the COMMIT's: nobody can ask any more
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		proxy.armed.Store(true)
		return effectOf(ctx, tx, e)
	})
	if out, err := in.Receive(ctx, event("1", "k")); !errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("Receive = %q, %v; want ErrOutcomeUnknown", out, err)
	}
	b.receive(in, event("1", "k"), Duplicate)
	if b.effects("1") != 1 {
		t.Error("the event has not exactly one effect")
	}
}

func TestCommit_AStoredEventWhoseCommitGotNoAnswerIsNotHandledTwice(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	var proxy cutter
	in := b.inboxOn(proxy.pool(b))
	var runs atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		runs.Add(1)
		proxy.armed.Store(true)
		return effectOf(ctx, tx, e)
	})
	b.store(in, event("1", "k"))
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	if runs.Load() != 1 || b.effects("1") != 1 {
		t.Errorf("%d runs, %d effects; want 1 each", runs.Load(), b.effects("1"))
	}
}

func (b *bundle) store(in *Inbox, e holdfast.Event) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
		out, err := in.StoreTx(b.Context(), tx, e)
		if err == nil && out != Stored {
			err = fmt.Errorf("outcome %q, want stored", out)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}
