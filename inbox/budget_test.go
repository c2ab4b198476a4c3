package inbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

func TestBudget_ABudgetCountsFromTheFirstFailure(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = time.Minute; c.Retry.Budget = 10 * time.Second; c.Retry.Attempts = 5 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := tx.Exec(ctx, "select pg_sleep(10.2)"); err != nil {
			return err
		}
		return errors.New("no")
	})
	b.receive(in, event("1", "k"), Retrying)
}

// An event may have waited for long before its handler ran first: behind its key, for a node that knows its type, for Run.
func TestBudget_TheBudgetOfAnEventThatWaitedCountsFromItsFirstFailure(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Budget, c.Retry.Attempts = 10*time.Minute, 100; c.Retry.Cap = time.Hour })
	var tries atomic.Int64
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
		switch e.ID {
		case "head":
			return retry.Permanent(errors.New("no"))
		case "behind":
			if tries.Add(1) < 3 {
				return retry.After(errors.New("no"), 10*time.Millisecond)
			}
		}
		return retry.After(errors.New("no"), 9*time.Minute) // leaves a minute for what comes before
	})
	for _, e := range []holdfast.Event{event("head", "k"), event("behind", "k"), event("alone", "")} {
		b.store(in, e)
	}
	pgtest.Exec(t, b.db, "update holdfast.stored set first_at = first_at - interval '1 hour'")
	stop := b.run(in.Run)
	b.awaitOutcome("head", Dead)
	b.await("a third failure of an event that waited", func(o *observations) bool {
		return len(o.outcomes["behind"]) >= 3 && len(o.outcomes["alone"]) >= 1
	})
	stop()
	for _, id := range []string{"behind", "alone"} {
		if n := b.count("select count(*) from holdfast.stored where event_id = $1 and failed_at > now() - interval '1 minute'", id); n != 1 {
			t.Errorf("%s was given up, or it is not known since when it fails: %v", id, b.observed.outcomes[id])
		}
	}
	if n := b.count("select attempts from holdfast.stored where event_id = 'behind'"); n != 3 {
		t.Errorf("%d failures, want 3", n)
	}

	// Since when its key waits is another matter.
	if heads := b.waiting(waiting.Filter{Key: "k", Heads: true}); len(heads) != 1 || time.Since(heads[0].Since) < time.Hour-time.Minute {
		t.Errorf("heads: %+v; want one that waits for an hour", heads)
	}

	// The letter says when it failed first.
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now(), failed_at = failed_at - interval '2 minutes'")
	b.run(in.Run)
	b.awaitOutcome("behind", Dead)
	b.awaitOutcome("alone", Dead)
	if n := b.count("select count(*) from holdfast.letter where first_at < now() - interval '2 minutes' and first_at > now() - interval '5 minutes'"); n != 2 {
		t.Errorf("%d letters say when their event failed first, want 2", n)
	}
}

func TestBudget_AnEventThatIsParkedKeepsWhenItFailedFirst(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Budget, c.Retry.Attempts, c.ImmediateRetries = time.Hour, 5, 1 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		if _, err := tx.Exec(ctx, "select pg_sleep(0.3)"); err != nil {
			return err
		}
		return errors.New("no")
	})
	b.receive(in, event("1", "k"), Retrying) // after a quick try, 0.3 s behind the first
	if n := b.count("select count(*) from holdfast.stored where failed_at between first_at - interval '30 s' and first_at - interval '0.3 s'"); n != 1 {
		t.Error("it is not stored when it failed first")
	}
}

// While there is no room for the event, or no database, the write of the verdict is tried again and again.
func TestBudget_AnEventParkedLateKeepsWhenItFailedFirst(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.Retry.Budget, c.Retry.Attempts, c.ImmediateRetries, c.MaxStored = time.Hour, 5, -1, 1
	})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no") })
	b.receive(in, event("filler", "other"), Retrying)
	d := in.registry.newDelivery(event("1", "k"))
	late := in.newIntake(d, nil, nil)
	if out, err := in.receiver.receive(t.Context(), late, nil); !errors.Is(err, ErrFull) {
		t.Fatalf("got %s, %v, want ErrFull", out, err)
	}
	pgtest.Exec(t, b.db, "select pg_sleep(1.1)")
	pgtest.Exec(t, b.db, "delete from holdfast.stored")
	usage := &in.receiver.queues.quota.usage
	usage.mu.Lock()
	usage.counted = time.Time{}
	usage.mu.Unlock()
	if out, err := in.receiver.receive(t.Context(), late, nil); out != Retrying || err != nil {
		t.Fatalf("got %s, %v, want it stored", out, err)
	}
	if n := b.count("select count(*) from holdfast.stored where event_id = '1' and failed_at < now() - interval '1 s'"); n != 1 {
		t.Error("it is not stored when it failed first")
	}
}
