package inbox

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// An outage costs no attempt as long as the lease lasts, and a stop does not wait for a database that is away.
func TestLeased_AnEventIsHandedBackForAsLongAsItsLeaseLasts(t *testing.T) {
	for _, row := range []struct {
		name string
		left time.Duration // of the lease
		stop time.Duration // after which we are told to stop; 0 for never
		want time.Duration
	}{
		{"while the lease lasts", 40 * time.Second, 0, 40 * time.Second},
		{"for a while after a stop", 40 * time.Second, 5 * time.Second, 5*time.Second + finishTimeout},
		{"not past the lease after a stop", 40 * time.Second, 35 * time.Second, 40 * time.Second},
		{"for a while when the lease is nearly over", time.Second, 0, finishTimeout},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				config, err := pgxpool.ParseConfig("postgres://holdfast@127.0.0.1/away?sslmode=disable")
				if err != nil {
					t.Fatal(err)
				}
				config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("connection refused") }
				pool, err := pgxpool.NewWithConfig(t.Context(), config)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				in, err := New(pool, Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if row.stop > 0 {
					time.AfterFunc(row.stop, stop)
				}
				begun := time.Now()
				in.backlog.handBack(ctx, &claimed{e: event("1", "k"), until: begun.Add(row.left)}, 0)
				if took := time.Since(begun); took != row.want {
					t.Errorf("it was tried for %s, want %s", took, row.want)
				}
			})
		})
	}
}

// A handler that has waited for its connection for too long could not commit: another worker would have the event.
func TestLeased_AWaitForAConnectionGoesBackUnspentWithoutAHandler(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	pool := b.db.PoolOf(t, 1)
	in := b.inboxOn(pool, func(c *Config) { c.Retry.Attempts = 1 })
	in.Handle("order.placed", effectOf)
	in.registry.start()
	b.store(in, event("1", "k"))
	got, err := in.claims.claim(t.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	s := got[0]
	if s.late(in.c) {
		t.Error("it is late as soon as it is claimed")
	}
	busy, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.until = time.Now().Add(in.c.Timeout + in.c.Grace + 300*time.Millisecond)
	released := time.AfterFunc(500*time.Millisecond, busy.Release)
	defer released.Stop()
	if err := in.backlog.work(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	if n := b.effects("1"); n != 0 {
		t.Error("its handler ran")
	}
	if n := b.count("select count(*) from holdfast.stored where attempts = 0 and lease_token is null and next_at <= now()"); n != 1 {
		t.Error("it did not go back unspent")
	}
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
}
