package inbox

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// What handlers do wrong is their event's failure: it costs an attempt, ends in a letter, and holds nobody else up.
func TestWhatAHandlerDoesWrongIsItsEventsFailure(t *testing.T) {
	for name, wrong := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"it ends its transaction by a statement": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "rollback")
			return err
		},
		"it leaves rows open": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select generate_series(1, 10)")
			if err == nil {
				rows.Next()
			}
			return err
		},
		"a statement runs into a time-out of its own": func(ctx context.Context, tx pgx.Tx) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(short, "select pg_sleep(5)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.Workers = 1 })
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.Key == "wrong" {
					return wrong(ctx, tx)
				}
				return effectOf(ctx, tx, e)
			})
			b.store(in, event("stored", "wrong"))
			b.consumeFake(in, newFakeGeneration(logOf(event("1", ""), event("2", "other"), event("3", "other"))))
			b.awaitOutcome("3", Handled)
			b.awaitOutcome("stored", Dead)
			if b.effects("1") != 1 || b.effects("2") != 1 {
				t.Error("others' events were held up")
			}
			wronged := b.inbox(func(c *Config) { c.Consumer = "shipping"; c.Workers = 1 })
			wronged.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == "1" {
					return wrong(ctx, tx)
				}
				return effectOf(ctx, tx, e)
			})
			b.consumeFake(wronged, newFakeGeneration(logOf(event("1", "k"), event("4", "other"))))
			b.awaitOutcome("1", Dead)
			b.awaitOutcome("4", Handled)
		})
	}
}

func TestASavepointThatAHandlerKeptIsOfNoUse(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	var kept pgx.Tx
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) (err error) {
		if e.ID == "1" {
			kept, err = tx.Begin(ctx)
			return err
		}
		if _, err := kept.Exec(ctx, "insert into effect (id, key) values ('from the first', '')"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("the first handler's savepoint answered %v in the second's transaction", err)
		}
		return effectOf(ctx, tx, e)
	})
	b.consumeFake(in, newFakeGeneration(logOf(event("1", "k"), event("2", "k"))))
	b.awaitOutcome("2", Handled)
	if b.effects("from the first") != 0 {
		t.Error("it wrote into another event's transaction")
	}
}

func TestAKeyWhoseEventIsCommittedDoesNotWaitForAnothersHandler(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 2 })
	began, release := make(chan struct{}), make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "b1" {
			close(began)
			<-release
		}
		if e.ID == "c1" { // keeps the other worker until b1 has begun, behind a1
			<-began
		}
		return effectOf(ctx, tx, e)
	})
	g := newFakeGeneration(logOf(event("c1", "c"), event("a1", "a"), event("b1", "b"), event("a2", "a")))
	b.consumeFake(in, g)
	b.awaitOutcome("a1", Handled)
	b.awaitOutcome("a2", Handled)
	if b.effects("b1") != 0 {
		t.Error("b1's handler has ended: the test shows nothing")
	}
	close(release)
	b.awaitSettled(4)
}

func TestABatchLargerThanWhatMayBeInHandIsCutShort(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Batch = 5000 })
	h := &batches{}
	in.HandleBatch("order.placed", h.handle)
	const n = 3000
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 70)...)))
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	if largest, _ := h.largest(); largest != maxAhead {
		t.Errorf("the largest batch had %d events, want %d", largest, maxAhead)
	}
}

func TestABudgetCountsFromTheFirstFailure(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Budget = 100 * time.Millisecond; c.Retry.Attempts = 5 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, err := tx.Exec(ctx, "select pg_sleep(0.15)"); err != nil {
			return err
		}
		return errors.New("no")
	})
	b.receive(in, event("1", "k"), Retrying)
}

func TestTheLargestLimitsAreLimits(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.MaxStored, c.MaxStoredKey = math.MaxInt, math.MaxInt })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no") })
	b.receive(in, event("1", "k"), Retrying)
}

func TestARecordOfAnImpossibleTimeIsHandledAndParkedLikeOthers(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no") })
	log := logOf(event("1", "k"))
	log[0].at = time.UnixMilli(1_763_000_000_000_000_000) // nanoseconds, where milliseconds belong
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitOutcome("1", Dead)
}
