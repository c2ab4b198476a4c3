package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// asleep is the statement that the handlers here have when their time is over.
const asleep = "select pg_sleep(60)"

// overdue is a context of a handler's own that runs out while tx is asleep: not before, however busy the machine is.
type overdue struct{ context.Context }

func (o overdue) Err() error {
	if err := o.Context.Err(); err == nil || context.Cause(o.Context) != errOverdue {
		return err
	}
	return context.DeadlineExceeded
}

var errOverdue = errors.New("its time is over")

// runsOut gives a handler the context; why is what its end is called.
func (b *bundle) runsOut(ctx context.Context, tx pgx.Tx, why error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	pid := int32(tx.Conn().PgConn().PID())
	go func() {
		for ctx.Err() == nil {
			var sleeps bool
			if err := b.db.QueryRow(ctx, "select coalesce((select wait_event = 'PgSleep' from pg_stat_activity where pid = $1), false)", pid).Scan(&sleeps); err == nil && sleeps {
				cancel(why)
			}
			_ = loop.Sleep(ctx, 2*time.Millisecond)
		}
	}()
	return overdue{ctx}, func() { cancel(nil) }
}

// What handlers do wrong is their event's failure: it costs an attempt, ends in a letter, and holds nobody else up.
func TestMisuse_WhatAHandlerDoesWrongIsItsEventsFailure(t *testing.T) {
	for name, wrong := range map[string]func(b *bundle, ctx context.Context, tx pgx.Tx) error{
		"it ends its transaction by a statement": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "rollback")
			return err
		},
		"it leaves rows open": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select generate_series(1, 10)")
			if err == nil {
				rows.Next()
			}
			return err
		},
		"a statement runs into a time-out of its own": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			short, cancel := b.runsOut(ctx, tx, errOverdue)
			defer cancel()
			_, err := tx.Exec(short, asleep)
			return err
		},
		"it says nothing of a time-out of its own": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			short, cancel := b.runsOut(ctx, tx, errOverdue)
			defer cancel()
			_, _ = tx.Exec(short, asleep)
			return nil
		},
		"it says something else of a time-out of its own": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			short, cancel := b.runsOut(ctx, tx, errOverdue)
			defer cancel()
			if _, err := tx.Exec(short, asleep); err != nil {
				return errors.New("the stock is not known")
			}
			return nil
		},
		"it says nothing of a time-out of its own under a savepoint": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			return ignore(pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				short, cancel := b.runsOut(ctx, tx, errOverdue)
				defer cancel()
				var nothing any
				return tx.QueryRow(short, asleep).Scan(&nothing)
			}))
		},
		"it cancels its own statement and says nothing": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			own, cancel := b.runsOut(ctx, tx, context.Canceled)
			defer cancel()
			_, _ = tx.Exec(own, asleep)
			return nil
		},
		"a statement on the bare connection runs into a time-out of its own": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			short, cancel := b.runsOut(ctx, tx, errOverdue)
			defer cancel()
			_, _ = tx.Conn().Exec(short, asleep)
			return nil
		},
		"it ends its own backend": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return err
		},
		"its query is always more than its server allows": func(b *bundle, ctx context.Context, tx pgx.Tx) error {
			for _, statement := range []string{"set local temp_file_limit = 64", "set local work_mem = 64",
				"select count(*) from (select n from generate_series(1, 100000) n order by random()) sorted"} {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		},
		"another server that it asks is never there": func(*bundle, context.Context, pgx.Tx) error {
			return fmt.Errorf("read the stock of another database: %w", &pgconn.PgError{Severity: "FATAL", Code: "57P03"})
		},
		"it breaks its connection so that COMMIT is not answered": func(_ *bundle, _ context.Context, tx pgx.Tx) error {
			return tx.Conn().PgConn().Conn().Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.Workers = 1 })
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.Key == "wrong" {
					return wrong(b, ctx, tx)
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
					return wrong(b, ctx, tx)
				}
				return effectOf(ctx, tx, e)
			})
			b.consumeFake(wronged, newFakeGeneration(logOf(event("1", "k"), event("4", "other"))))
			b.awaitOutcome("1", Dead)
			b.awaitOutcome("4", Handled)
		})
	}
}

func ignore(error) error { return nil }

func TestMisuse_WhatIsWaitedForSaysOfWhichEvent(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	var log strings.Builder
	in := b.inbox(func(c *Config) { c.Workers, c.Logger = 1, slog.New(slog.NewTextHandler(&log, nil)) })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		return &pgconn.PgError{Severity: "ERROR", Code: "53400", Message: "temporary file size exceeds temp_file_limit"}
	})
	stop := b.consumeFake(in, newFakeGeneration(logOf(event("1", "k"))))
	b.awaitOutcome("1", Dead)
	stop()
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "waiting for the database") && strings.Contains(line, "53400") {
			for _, want := range []string{"consumer=billing", "topic=orders", "partition=0", "type=order.placed", "id=1"} {
				if !strings.Contains(line, want) {
					t.Errorf("the line does not say %s: %s", want, line)
				}
			}
			return
		}
	}
	t.Error("no line says what is waited for")
}

func TestMisuse_AHandlerWithATimeOutOfItsOwnCostsOneTryAnAttempt(t *testing.T) {
	for name, row := range map[string]struct {
		wrong func(ctx context.Context, tx pgx.Tx)
		tries int64
		says  string
	}{
		"distinguished from a connection that broke": {func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, asleep) }, 3, "the handler's own time-out"},
		"and where it cannot be known":               {func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Conn().Exec(ctx, asleep) }, 3 * failure.MaxLosses, "5 times in a row the connection was lost"},
	} {
		for _, batch := range []int{1, 10} {
			t.Run(fmt.Sprintf("%s, batch %d", name, batch), func(t *testing.T) {
				b := setup(t)
				in := b.inbox(func(c *Config) { c.BatchSize, c.Workers = batch, 1 })
				var tries atomic.Int64
				in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
					for _, e := range events {
						if e.ID != "1" && e.ID != "stored" {
							if err := effectOf(ctx, tx, e); err != nil {
								return err
							}
							continue
						}
						if len(events) == 1 && e.ID == "1" {
							tries.Add(1)
						}
						short, cancel := b.runsOut(ctx, tx, errOverdue)
						row.wrong(short, tx)
						cancel()
					}
					return nil
				})
				b.store(in, event("stored", "s"))
				b.consumeFake(in, newFakeGeneration(logOf(event("0", "a"), event("1", "b"), event("2", "c"))))
				b.awaitSettled(3)
				b.awaitOutcome("1", Dead)
				b.awaitOutcome("stored", Dead)
				if n := tries.Load(); n != row.tries {
					t.Errorf("it ran %d times, want %d", n, row.tries)
				}
				if b.effects("0") != 1 || b.effects("2") != 1 {
					t.Error("others bore it")
				}
				for _, id := range []string{"1", "stored"} {
					var text string
					if err := b.db.QueryRow(t.Context(), "select errors[1] from holdfast.letter where event_id = $1 and attempts = 3 and cardinality(errors) = 3", id).Scan(&text); err != nil {
						t.Fatal(err)
					}
					if !strings.Contains(text, row.says) {
						t.Errorf("the letter of %s says %q, want %q", id, text, row.says)
					}
				}
			})
		}
	}
}

func TestMisuse_ASavepointThatAHandlerKeptIsOfNoUse(t *testing.T) {
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

func TestMisuse_AKeyWhoseEventIsCommittedDoesNotWaitForAnothersHandler(t *testing.T) {
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

func TestMisuse_ABatchLargerThanWhatMayBeInHandIsCutShort(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 5000 })
	h := &batches{}
	in.HandleBatch("order.placed", h.handle)
	const n = 3000
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 70)...)))
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	if largest, _ := h.largest(); largest != readahead.MaxAhead {
		t.Errorf("the largest batch had %d events, want %d", largest, readahead.MaxAhead)
	}
}

func TestMisuse_TheLargestLimitsAreLimits(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.MaxStored, c.MaxStoredKey = math.MaxInt, math.MaxInt })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no") })
	b.receive(in, event("1", "k"), Retrying)
}

func TestMisuse_ARecordOfAnImpossibleTimeIsHandledAndParkedLikeOthers(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no") })
	log := logOf(event("1", "k"))
	log[0].Time = time.UnixMilli(1_763_000_000_000_000_000) // nanoseconds, where milliseconds belong
	b.consumeFake(in, newFakeGeneration(log))
	b.awaitOutcome("1", Dead)
}

// A table of the handler's cannot grow, while the inbox's own statements still find room in their pages. The disk is full for all events
// but one, in the handler's statement or, for what is deferred, at COMMIT.
func TestMisuse_ADiskThatIsFullSpendsNoAttemptAndHoldsNoOtherKey(t *testing.T) {
	skip.InShort(t, "it waits 3 s beside the others")
	for _, when := range []string{"immediate", "deferred"} {
		t.Run(when, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, `create table disk (is_full boolean)`)
			pgtest.Exec(t, b.db, `insert into disk values (true)`)
			pgtest.Exec(t, b.db, `create function fail() returns trigger language plpgsql as $$ begin
				if (select is_full from disk) then raise exception using errcode = '53100', message = 'could not extend file'; end if;
				return null; end $$`)
			pgtest.Exec(t, b.db, `create constraint trigger grow after insert on effect deferrable initially `+when+`
				for each row when (new.id <> '3') execute function fail()`)
			in := b.inbox(func(c *Config) { c.Workers, c.Retry.Attempts, c.ImmediateRetries = 1, 2, -1 })
			var tries atomic.Int64
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == "stored" {
					tries.Add(1)
				}
				return effectOf(ctx, tx, e)
			})
			b.receive(in, event("received", "r"), Stored)
			b.store(in, event("stored", "s"))
			pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 1, losses = $1", failure.MaxLosses-1) // One more would spend the last attempt.
			b.consumeFake(in, newFakeGeneration(logOf(event("1", "k"), event("2", "k"), event("3", "other"))))
			b.awaitOutcome("3", Handled)
			b.awaitOutcome("2", Stored)
			b.await("three tries of the stored event", func(*observations) bool { return tries.Load() >= 3 })
			if n := b.count("select count(*) from holdfast.stored where attempts <= 2 and errors = '{}' and failed_at is null"); n != 4 {
				t.Errorf("%d events wait as if nothing had failed, want 4", n)
			}
			if n := b.count("select count(*) from holdfast.letter"); n != 0 {
				t.Errorf("%d letters", n)
			}
			pgtest.Exec(t, b.db, "update disk set is_full = false")
			for _, id := range []string{"received", "stored", "1", "2"} {
				b.awaitOutcome(id, Handled)
			}
			if n := b.count("select count(*) from effect"); n != 5 {
				t.Errorf("%d effects, want one of each event", n)
			}
		})
	}
}
