package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// No statement can be made any more, so that waiting for the database would last for ever.
func TestClosedPool_AClosedPoolEndsRunAndConsumeWithAnErrorThatSaysSo(t *testing.T) {
	run := func(in *Inbox) error { return in.Run(context.Background()) }
	consume := func(in *Inbox) error {
		in.registry.start()
		source := &fakeSource{make(chan *fakeGeneration, 1)}
		source.gens <- newFakeGeneration(logOf(event("k 0", "k"), event("2", "k")))
		return in.consume(context.Background(), source)
	}
	for _, row := range []struct {
		name  string
		run   func(in *Inbox) error
		takes bool  // events in by itself
		fails error // of the handler
	}{
		{"Run, while a handler runs", run, false, nil},
		{"Run, whose event cannot be put off", run, false, errors.New("not yet")},
		{"Consume, while a handler runs", consume, true, nil},
		{"Consume, whose event cannot be stored", consume, true, errors.New("not yet")},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			pool, err := pgxpool.NewWithConfig(t.Context(), b.db.Config())
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			in := b.inboxOn(pool, func(c *Config) { c.StopTimeout = time.Hour })
			begun, end := make(chan struct{}), make(chan struct{})
			in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
				if e.ID == "k 0" {
					close(begun)
					<-end
				}
				return row.fails
			})
			if !row.takes {
				b.storeMany(in, 1, "k")
			}
			done := make(chan error, 1)
			go func() { done <- row.run(in) }()
			<-begun
			closed := make(chan struct{})
			go func() { pool.Close(); close(closed) }() // It waits for the handler's connection.
			wait.Until(t, "the pool is closed", func() bool {
				conn, err := pool.Acquire(context.Background())
				if err == nil {
					conn.Release()
				}
				return errors.Is(err, puddle.ErrClosedPool)
			})
			close(end)
			select {
			case err := <-done:
				if !errors.Is(err, puddle.ErrClosedPool) || !strings.Contains(err.Error(), "close the pool after Run and Consume have returned") {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(wait.Limit()):
				t.Fatal("it runs for ever")
			}
			<-closed
		})
	}
}

func TestClosedPool_RunAndConsumeDoNotBeginWithAClosedPool(t *testing.T) {
	b := setup(t)
	pool := b.db.PoolOf(t, 2)
	pool.Close()
	for name, run := range map[string]func(in *Inbox) error{
		"Run":     func(in *Inbox) error { return in.Run(context.Background()) },
		"Consume": func(in *Inbox) error { in.registry.start(); return in.consume(context.Background(), &fakeSource{}) },
	} {
		in := b.inboxOn(pool)
		in.Handle("order.placed", effectOf)
		if err := run(in); !errors.Is(err, puddle.ErrClosedPool) {
			t.Errorf("%s ended with %v", name, err)
		}
	}
}

// What became of a claimed event is written again and again, until its lease ends. A closed pool will never take it.
func TestClosedPool_NothingIsWrittenAgainAndAgainToAClosedPool(t *testing.T) {
	for name, write := range map[string]func(ctx context.Context, bl *backlog, s *claimed){
		"an event that is handed back": func(ctx context.Context, bl *backlog, s *claimed) { bl.handBack(ctx, s, 0) },
		"a dead letter": func(ctx context.Context, bl *backlog, s *claimed) {
			bl.writeDead(ctx, s, letter{reason: "r"}, time.Now())
		},
		"a COMMIT that got no answer":         func(ctx context.Context, bl *backlog, s *claimed) { _, _ = bl.gone(ctx, s) },
		"an event whose handler cannot begin": func(ctx context.Context, bl *backlog, s *claimed) { _ = bl.work(ctx, s, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.db.PoolOf(t, 2)
			in := b.inboxOn(pool)
			in.Handle("order.placed", effectOf)
			in.registry.start()
			b.storeMany(in, 1, "k")
			got, err := in.claims.claim(t.Context(), 1)
			if err != nil || len(got) != 1 {
				t.Fatalf("claimed %d: %v", len(got), err)
			}
			pool.Close()
			write(t.Context(), in.backlog, got[0])
			if n := len(b.observed.errs); n > 1 {
				t.Errorf("it was tried %d times: %v", n, b.observed.errs)
			}
		})
	}
}
