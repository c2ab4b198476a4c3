package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func TestReceive_AnEventReceivedFiftyTimesAtOnceIsHandledOnce(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	var handled, duplicates atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			switch out, err := in.Receive(b.Context(), event("1", "k")); {
			case err != nil:
				t.Error(err)
			case out == Handled:
				handled.Add(1)
			case out == Duplicate:
				duplicates.Add(1)
			}
		})
	}
	wg.Wait()
	if handled.Load() != 1 || duplicates.Load() != 49 || b.effects("1") != 1 {
		t.Errorf("%d handled, %d duplicates, %d effects; want 1, 49, 1", handled.Load(), duplicates.Load(), b.effects("1"))
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and processed_at is not null and attempts = 1"); n != 1 {
		t.Errorf("%d inbox rows that say handled, want 1", n)
	}
}

func TestReceive_AnIdWithAnotherPayloadIsAConflict(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	other := event("1", "k")
	other.Payload = []byte("something else")
	b.receive(in, other, Conflict)
	b.receive(in, other, Conflict)
	b.receive(in, event("1", "k"), Duplicate)
	if b.effects("1") != 1 {
		t.Error("the other payload was handled")
	}
	if n := b.count("select count(*) from holdfast.letter where event_id = '1' and payload = 'something else' and reason like 'conflict%' and state = 'open'"); n != 1 {
		t.Errorf("%d letters, want one for the payload, however often it comes", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where hash = sha256('order.placed'::bytea || '\\x00'::bytea || 'payload of 1'::bytea)"); n != 1 {
		t.Error("the inbox row was overwritten")
	}
}

func TestReceive_AFailedHandlerLeavesNothingAndIsRetried(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox()
	var tries atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		if tries.Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	b.receive(in, event("1", "k"), Retrying)
	if n := b.count("select count(*) from holdfast.stored where attempts = 1 and errors[1] = 'not yet' and payload = 'payload of 1'"); n != 1 {
		t.Fatalf("%d stored rows, want 1", n)
	}
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	if b.effects("1") != 1 || b.count("select count(*) from holdfast.stored") != 0 {
		t.Error("the event did not end with one effect and no stored row")
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and attempts = 3"); n != 1 {
		t.Error("the inbox row does not say handled at the third attempt")
	}
	b.receive(in, event("1", "k"), Duplicate)
}

func TestReceive_AQuickRetryHappensInPlace(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.ImmediateRetries = 2 })
	var tries atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if tries.Add(1) < 3 {
			return errors.New("not yet")
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Handled)
	if n := b.count("select attempts from holdfast.inbox"); n != 3 {
		t.Errorf("attempts is %d, want 3", n)
	}
}

func TestReceive_APoisonMessageIsADeadLetterWithAllErrors(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	var n atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "poison" {
			return fmt.Errorf("attempt %d: %w", n.Add(1), errors.New("bad address 4711"))
		}
		return effectOf(ctx, tx, e)
	})
	poison := event("poison", "k")
	poison.Headers = map[string]string{"tenant": "a"}
	b.receive(in, poison, Retrying)
	b.receive(in, event("next", "k"), Stored)
	b.receive(in, event("other", "other"), Handled)
	b.run(in.Run)
	b.awaitOutcome("poison", Dead)
	b.awaitOutcome("next", Handled)
	var errs []string
	var fingerprint, payload, tenant string
	var attempts int
	err := b.db.QueryRow(b.Context(), "select errors, fingerprint, attempts, convert_from(payload, 'UTF8'), headers->>'tenant' from holdfast.letter where state = 'open' and not holds").
		Scan(&errs, &fingerprint, &attempts, &payload, &tenant)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"attempt 1: bad address 4711", "attempt 2: bad address 4711", "attempt 3: bad address 4711"}
	if !slices.Equal(errs, want) || attempts != 3 || payload != "payload of poison" || tenant != "a" {
		t.Errorf("letter has errors %q, attempts %d, payload %q, tenant %q", errs, attempts, payload, tenant)
	}
	if strings.ContainsAny(fingerprint, "0123456789") || !strings.Contains(fingerprint, "order.placed") {
		t.Errorf("fingerprint is %q", fingerprint)
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id = 'poison' and result = 'dead' and attempts = 3"); n != 1 {
		t.Error("the inbox row does not say dead")
	}
	b.receive(in, poison, Duplicate)
}

func TestReceive_APermanentFailureIsDeadAtOnce(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.ImmediateRetries = 5 })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.Permanent(errors.New("no such order"))
	})
	b.receive(in, event("1", "k"), Dead)
	if n := b.count("select count(*) from holdfast.letter where attempts = 1 and errors = '{no such order}'"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestReceive_TheWaitThatAHandlerAsksForIsKept(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.ImmediateRetries = 5 })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.After(errors.New("busy"), time.Hour)
	})
	b.receive(in, event("1", ""), Retrying)
	if n := b.count("select count(*) from holdfast.stored where next_at between now() + interval '59 minutes' and now() + interval '61 minutes'"); n != 1 {
		t.Error("next_at is not an hour away")
	}
}

func TestReceive_ADeadLetterHoldsItsKeyUntilItIsReplayed(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	var fixed atomic.Bool
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" && !fixed.Load() {
			return retry.Permanent(errors.New("bad"))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	b.receive(in, event("2", "k"), Stored) // nothing is stored before it: the letter holds it
	b.run(in.Run)
	b.receive(in, event("3", "other"), Handled)
	b.receive(in, event("4", ""), Handled)
	replay := func() {
		pgtest.Exec(t, b.db, `with l as (update holdfast.letter set state = 'replaying' where event_id = '1' returning *)
			insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, payload, hash, letter)
			select consumer, topic, key, (select min(place) - 1 from holdfast.stored), source, event_id, type, time, payload, hash, id from l`)
	}
	replay() // fails again: the letter is open again and knows it
	b.await("the replay to fail", func(o *observations) bool { return slices.Equal(o.outcomes["1"], []Outcome{Dead, Dead}) })
	if n := b.count("select count(*) from holdfast.letter where state = 'open' and holds and attempts = 2 and cardinality(errors) = 2"); n != 1 {
		t.Error("the letter was not opened again with the errors of its replay")
	}
	if b.effects("2") != 0 {
		t.Fatal("the held event was handled")
	}
	fixed.Store(true)
	replay()
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from holdfast.letter where state = 'replayed'"); n != 1 {
		t.Error("the letter is not replayed")
	}
	if n := b.count("select count(*) from effect a join effect b on a.n < b.n where a.id = '1' and b.id = '2'"); n != 1 {
		t.Error("the replay and the held event were not handled in order")
	}
}

// heldKey is an inbox that has given up the event 1 of the key "k", and has stored the event 2, which the letter holds.
func (b *bundle) heldKey() *Inbox {
	b.Helper()
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" {
			return retry.Permanent(errors.New("bad"))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	b.receive(in, event("2", "k"), Stored)
	return in
}

// A held event is dormant, and next resumes none that a letter holds. The claim does not rely on either.
func TestReceive_AHeldEventIsNotClaimedThoughItIsDue(t *testing.T) {
	skip.InShort(t, "it takes 25 s beside the others")
	b := setup(t)
	in := b.heldKey()
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() - interval '1 hour'")
	b.run(in.Run)
	b.store(in, event("marker", "other")) // handled after it: the node has looked for what is due
	b.awaitOutcome("marker", Handled)
	if b.effects("2") != 0 || b.count("select attempts from holdfast.stored where event_id = '2'") != 0 {
		t.Error("the held event was claimed")
	}
	pgtest.Exec(t, b.db, "update holdfast.letter set state = 'discarded'")
	pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now()") // Claims go on from the last one. They may not look at all again for ten seconds.
	b.awaitOutcome("2", Handled)
}

func TestReceive_AHeldKeyGoesOnWhenItsLetterIsDiscarded(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	in := b.heldKey()
	pgtest.Exec(t, b.db, "update holdfast.letter set state = 'discarded'")
	b.run(in.Run)
	b.awaitOutcome("2", Handled)
}

func TestReceive_PanicGoexitAndABrokenTransactionAreFailures(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Attempts = 1 })
	in.Handle("panic", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { panic("out of cheese") })
	in.Handle("panics with the event", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { panic(e) })
	in.Handle("nil map", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { e.Headers["a"] = "b"; return nil })
	in.Handle("goexit", func(context.Context, pgx.Tx, holdfast.Event) error { runtime.Goexit(); return nil })
	in.Handle("swallows", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		_, _ = tx.Exec(ctx, "select 1/0")
		return nil
	})
	in.Handle("violates", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into effect (n) values (1)")
		return err
	})
	for eventType, want := range map[string]string{
		"panic": "out of cheese", "panics with the event": "a value of type holdfast.Event", "nil map": "assignment to entry in nil map",
		"goexit": "runtime.Goexit", "swallows": "a statement failed, but the handler returned nil", "violates": "SQLSTATE 428C9",
	} {
		e := event(eventType, "k")
		e.Type = eventType
		b.receive(in, e, Dead)
		var text string
		if err := b.db.QueryRow(b.Context(), "select errors[1] from holdfast.letter where event_id = $1", eventType).Scan(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, want) || strings.Contains(text, "payload of") || len(text) > failure.MaxErrorText {
			t.Errorf("%s: the letter says %q, want %q in it and no payload", eventType, text, want)
		}
		if strings.HasPrefix(eventType, "panic") && !strings.Contains(text, "receive_test.go") {
			t.Errorf("%s: the letter does not say where: %q", eventType, text)
		}
	}
}

func TestReceive_AHungHandlerLosesItsConnectionAndTooManyStopTheInbox(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout, c.Grace, c.MaxHung = 20*time.Millisecond, 20*time.Millisecond, 2 })
	release := make(chan struct{})
	wrote := make(chan error, 3)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		conn := tx.Conn() // pgx.Tx itself would refuse to work after a rollback
		<-release
		_, err := conn.Exec(context.Background(), "insert into effect (id) values ('late')")
		wrote <- err
		return err
	})
	b.receive(in, event("1", "a"), Retrying)
	b.receive(in, event("2", "b"), Retrying)
	if _, err := in.Receive(b.Context(), event("3", "c")); !errors.Is(err, ErrHungHandlers) {
		t.Errorf("the third Receive returned %v, want ErrHungHandlers", err)
	}
	if err := in.Run(b.Context()); !errors.Is(err, ErrHungHandlers) {
		t.Errorf("Run returned %v, want ErrHungHandlers", err)
	}
	if n := b.count("select count(*) from holdfast.stored where errors[1] like '%did not return within%'"); n != 2 {
		t.Errorf("%d stored, want 2", n)
	}
	// The pool gives out other connections; what the hung handlers write goes nowhere.
	close(release)
	for range 2 {
		if err := <-wrote; err == nil {
			t.Error("a handler that hung could still write")
		}
	}
	if b.effects("late") != 0 {
		t.Error("a write of a hung handler was committed")
	}
}

func TestReceive_AHandlerThatHeedsItsTimeoutIsTriedAgain(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout, c.Grace = 20*time.Millisecond, time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		// No statement is under way: a request to cancel that overtakes its statement is lost, and the backend would go on with the
		// lock on the event's row. TestSwallow_AStatementThatTakesTooLongSpendsAnAttempt has one.
		<-ctx.Done()
		return ctx.Err()
	})
	b.receive(in, event("1", "a"), Retrying)
	if n := b.count("select count(*) from holdfast.stored where attempts = 1 and errors[1] like 'the handler was cancelled after 20ms%'"); n != 1 {
		t.Error("the timeout was not recorded as a failure of the event")
	}
}

func TestReceive_ASerializationFailureAndADeadlockAreRunAgainForFree(t *testing.T) {
	for _, code := range []string{"40001", "40P01"} {
		t.Run(code, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.Retry.Attempts = 1 })
			tries := 0
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if tries++; tries <= 5 {
					_, err := tx.Exec(ctx, "do $$ begin raise exception 'again' using errcode = '"+code+"'; end $$")
					return fmt.Errorf("update stock: %w", err)
				}
				return effectOf(ctx, tx, e)
			})
			b.receive(in, event("1", "k"), Handled)
			if tries != 6 || b.count("select attempts from holdfast.inbox") != 1 {
				t.Errorf("%d tries, attempts %d; want 6 and 1", tries, b.count("select attempts from holdfast.inbox"))
			}
		})
	}
}

func TestReceive_ALostDatabaseSpendsNoAttempt(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry.Attempts = 1 })
	killed := false
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if !killed {
			killed = true
			_, _ = b.db.Exec(ctx, "select pg_terminate_backend($1)", int32(tx.Conn().PgConn().PID()))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Handled)
	if b.effects("1") != 1 || b.count("select count(*) from holdfast.letter") != 0 {
		t.Error("the event was blamed for the database")
	}
}

func TestReceive_AReceiveWhoseContextEndsLeavesNothing(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	ctx, cancel := context.WithCancel(b.Context())
	in.Handle("order.placed", func(hctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		cancel()
		<-hctx.Done()
		return hctx.Err()
	})
	if out, err := in.Receive(ctx, event("1", "k")); !errors.Is(err, context.Canceled) || out != "" {
		t.Errorf("Receive = %q, %v; want the context's error", out, err)
	}
	if n := b.count("select (select count(*) from holdfast.inbox) + (select count(*) from holdfast.stored)"); n != 0 {
		t.Error("a cancelled Receive left rows")
	}
}
