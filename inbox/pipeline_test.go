package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// keyed is n events that take turns among keys.
func keyed(n, keys int) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = event(fmt.Sprintf("%05d", i), fmt.Sprintf("key %d", i%keys))
	}
	return events
}

// inOrderAndOnce checks that each event had its effect once, and those of a key in their order.
func (b *bundle) inOrderAndOnce(want int) {
	b.Helper()
	if n := b.count("select count(*) from effect"); n != int64(want) {
		b.Errorf("%d effects, want %d", n, want)
	}
	if n := b.count("select count(*) from (select id from effect group by id having count(*) > 1) twice"); n != 0 {
		b.Errorf("%d events had their effect more than once", n)
	}
	if n := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) as before from effect) e where before > id"); n != 0 {
		b.Errorf("%d events were handled before one of their key that came first", n)
	}
}

func (b *bundle) awaitSettled(position int64) {
	b.Helper()
	b.await(fmt.Sprintf("position %d", position), func(o *observations) bool { return o.settled["orders/0"] == position })
}

// The transaction of an event is committed in the round trip that begins the next one. Whatever goes wrong there, each
// keeps what is its own.
func TestPipeline_AFailedCommitDoesNotBlameTheEventsAfterIt(t *testing.T) {
	for name, breaking := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"a deferred constraint": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into deferred values (1), (1)")
			return err
		},
		"an error that the handler swallowed": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		},
		"a connection that is killed": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, "create table deferred (n int unique deferrable initially deferred)")
			in := b.inbox(func(c *Config) { c.Workers = 1; c.Retry.Attempts = 50; c.ImmediateRetries = 100 })
			const n = 60
			var broken sync.Map
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := effectOf(ctx, tx, e); err != nil {
					return err
				}
				if _, before := broken.LoadOrStore(e.ID, true); !before && e.ID[len(e.ID)-1]%3 == 0 {
					return breaking(ctx, tx)
				}
				return nil
			})
			b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 3)...)))
			b.awaitSettled(n)
			b.inOrderAndOnce(n)
		})
	}
}

func TestPipeline_ConnectionsKilledAtRandomLoseAndRepeatNothing(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	b := setup(t)
	const n, keys = 2000, 40
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	chance := func(of int) bool { mu.Lock(); defer mu.Unlock(); return random.IntN(of) == 0 }
	// Only the inbox's connections are killed, not those that the test looks with.
	subjects := b.db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "subject" })
	for _, batch := range []int{1, 20} {
		pgtest.Exec(t, b.db, "truncate effect")
		in := b.inboxOn(subjects, func(c *Config) {
			c.Consumer = fmt.Sprintf("billing %d", batch)
			c.Retry = retry.Policy{Attempts: 1000, Base: time.Millisecond, Cap: 5 * time.Millisecond}
			c.BatchSize = batch
		})
		handler := func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
			for _, e := range events {
				if err := effectOf(ctx, tx, e); err != nil {
					return err
				}
				if chance(40) {
					return errors.New("unlucky")
				}
			}
			return nil
		}
		in.HandleBatch("order.placed", handler)
		killing, stopKilling := context.WithCancel(t.Context())
		var killed atomic.Int64
		var killer sync.WaitGroup
		killer.Go(func() {
			conn, err := b.db.Acquire(killing)
			if err != nil {
				return
			}
			defer conn.Release()
			handled := func() int { return of(b, func(o *observations) int { return len(o.outcomes) }) }
			for before := 0; killing.Err() == nil && killed.Load() < 40; {
				// In so many events few meet more than one end, however slow they are: five in a row would be the event's failure.
				if now := handled(); now >= before+15+10*batch {
					before = now
				} else if killed.Load() > 0 {
					_ = loop.Sleep(killing, 2*time.Millisecond)
					continue
				}
				var one bool
				err := conn.QueryRow(killing, `select pg_terminate_backend(pid) from pg_stat_activity
					where datname = current_database() and application_name = 'subject' order by random() limit 1`).Scan(&one)
				if err == nil && one {
					killed.Add(1)
				}
				_ = loop.Sleep(killing, 80*time.Millisecond)
			}
		})
		stop := b.consumeFake(in, newFakeGeneration(logOf(keyed(n, keys)...)))
		b.awaitSettled(n)
		stopKilling()
		killer.Wait()
		b.nothingStored()
		stop()
		b.inOrderAndOnce(n)
		// Each failure that cost an attempt is one that the handler returned.
		if n := b.count("select count(*) from holdfast.letter"); n != 0 {
			t.Errorf("%d letters", n)
		}
		b.observed.record(func() {
			for _, r := range b.observed.retries {
				if r.Err.Error() != "unlucky" {
					t.Errorf("an attempt of %s was spent for %v", r.Event.ID, r.Err)
				}
			}
		})
		t.Logf("batch %d: %d connections killed", batch, killed.Load())
		if killed.Load() == 0 {
			t.Error("nothing was killed: the test shows nothing")
		}
		b.observed.record(func() { b.observed.settled, b.observed.outcomes = map[string]int64{}, map[string][]Outcome{} })
	}
}

func TestPipeline_APoolSmallerThanTheWorkersServesThemAll(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	b := setup(t)
	pool := b.db.PoolOf(t, 2)
	in := b.inboxOn(pool, func(c *Config) { c.Workers = 16 })
	in.Handle("order.placed", effectOf)
	const n = 4000
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 100)...)))
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	// The workers gave their connections back on the way, though there was work all the time: so that positions are saved.
	if got := pool.Stat().AcquireCount(); got < n/maxTransactions {
		t.Errorf("connections were taken %d times for %d events, want at least every %d", got, n, maxTransactions)
	}
}

func TestPipeline_AHandlersTransactionIsNotItsOwnToEndOrToKeep(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var kept pgx.Tx
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		kept = tx
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			return errors.New("the handler could end its transaction")
		}
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := effectOf(ctx, nested, event("nested", "k")); err != nil {
			return err
		}
		if err := nested.Rollback(ctx); err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Handled)
	if b.effects("1") != 1 || b.effects("nested") != 0 {
		t.Error("the savepoint did not do what savepoints do")
	}
	if _, err := kept.Exec(t.Context(), "insert into effect (id) values ('late')"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction kept beyond its handler answered %v", err)
	}
	if _, err := kept.Query(t.Context(), "select 1"); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a query on it answered %v", err)
	}
}

func TestPipeline_AStopLeavesWhatHasNotBegun(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers, c.Group, c.StopTimeout = 2, 1, 5*time.Minute })
	first := make(chan struct{}, 500)
	goOn := make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		first <- struct{}{}
		<-goOn
		return effectOf(ctx, tx, e)
	})
	g := newFakeGeneration(logOf(keyed(500, 50)...))
	b.consumeFake(in, g)
	<-first
	<-first
	g.mu.Lock()
	stopping := g.reading.Done()
	g.mu.Unlock()
	close(g.ended) // the group wants the partition back
	<-stopping
	close(goOn)
	<-g.left
	if n := b.count("select count(*) from effect"); n != 2 {
		t.Errorf("%d of 500 events were handled before the partition was let go of, want the two that had begun", n)
	}
}
