package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/retry"
)

func TestAnEventReceivedFiftyTimesAtOnceIsHandledOnce(t *testing.T) {
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

func TestAnIdThatComesAgainWithAnotherPayloadIsAConflictAndALetter(t *testing.T) {
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
	if n := b.count("select count(*) from holdfast.inbox where hash = sha256('payload of 1')"); n != 1 {
		t.Error("the inbox row was overwritten")
	}
}

func TestAFailedHandlerLeavesNothingAndIsTriedAgainUntilItSucceeds(t *testing.T) {
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

func TestAQuickRetryHappensInPlace(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Quick = 2 })
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

func TestAPoisonedEventBecomesALetterWithAllItsErrorsAndItsKeyGoesOn(t *testing.T) {
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

func TestAPermanentFailureIsDeadAtOnce(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Quick = 5 })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.Permanent(errors.New("no such order"))
	})
	b.receive(in, event("1", "k"), Dead)
	if n := b.count("select count(*) from holdfast.letter where attempts = 1 and errors = '{no such order}'"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestTheWaitThatAHandlerAsksForIsKept(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Quick = 5 })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		return retry.After(errors.New("busy"), time.Hour)
	})
	b.receive(in, event("1", ""), Retrying)
	if n := b.count("select count(*) from holdfast.stored where next_at between now() + interval '59 minutes' and now() + interval '61 minutes'"); n != 1 {
		t.Error("next_at is not an hour away")
	}
}

func TestAKeyIsHeldBehindADeadLetterUntilThatIsReplayed(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	var mended atomic.Bool
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" && !mended.Load() {
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
	b.await("the replay to fail", func(o *telling) bool { return slices.Equal(o.outcomes["1"], []Outcome{Dead, Dead}) })
	if n := b.count("select count(*) from holdfast.letter where state = 'open' and holds and attempts = 2 and cardinality(errors) = 2"); n != 1 {
		t.Error("the letter was not opened again with the errors of its replay")
	}
	if b.effects("2") != 0 {
		t.Fatal("the held event was handled")
	}
	mended.Store(true)
	replay()
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from holdfast.letter where state = 'replayed'"); n != 1 {
		t.Error("the letter is not replayed")
	}
	if n := b.count("select count(*) from effect a join effect b on a.n < b.n where a.id = '1' and b.id = '2'"); n != 1 {
		t.Error("the replay and the held event were not handled in order")
	}
}

func TestAHeldKeyGoesOnWhenItsLetterIsDiscarded(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.HoldKey = true })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" {
			return retry.Permanent(errors.New("bad"))
		}
		return effectOf(ctx, tx, e)
	})
	b.receive(in, event("1", "k"), Dead)
	b.receive(in, event("2", "k"), Stored)
	pgtest.Exec(t, b.db, "update holdfast.letter set state = 'discarded'")
	b.run(in.Run)
	b.awaitOutcome("2", Handled)
}

func TestPanicGoexitAndABrokenTransactionAreFailures(t *testing.T) {
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
		if !strings.Contains(text, want) || strings.Contains(text, "payload of") || len(text) > maxErrorText {
			t.Errorf("%s: the letter says %q, want %q in it and no payload", eventType, text, want)
		}
		if strings.HasPrefix(eventType, "panic") && !strings.Contains(text, "receive_test.go") {
			t.Errorf("%s: the letter does not say where: %q", eventType, text)
		}
	}
}

func TestAHandlerThatHangsLosesItsConnectionAndTooManyStopTheInbox(t *testing.T) {
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

func TestAHandlerThatHeedsItsTimeoutIsTriedAgain(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = 20 * time.Millisecond })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, _ holdfast.Event) error {
		_, err := tx.Exec(ctx, "select pg_sleep(60)")
		return err
	})
	b.receive(in, event("1", "a"), Retrying)
	if n := b.count("select count(*) from holdfast.stored where attempts = 1 and errors[1] like 'the handler was cancelled after 20ms%'"); n != 1 {
		t.Error("the timeout was not recorded as a failure of the event")
	}
}

func TestASerializationFailureAndADeadlockAreRunAgainForFree(t *testing.T) {
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

func TestALostDatabaseSpendsNoAttempt(t *testing.T) {
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

func TestAReceiveWhoseContextEndsLeavesNothing(t *testing.T) {
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

// cutter is a proxy to Postgres that swallows the answer to a COMMIT: it forwards the statement, waits until Postgres
// has answered, and closes the client's connection instead of passing the answer on.
type cutter struct {
	armed atomic.Bool
	cuts  atomic.Int64
}

func (p *cutter) pool(b *bundle) *pgxpool.Pool {
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
						if outward && strings.Contains(string(buf[:n]), "commit\x00") && p.armed.CompareAndSwap(true, false) {
							cut.Store(true)
						}
						if !outward && cut.Load() {
							p.cuts.Add(1)
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
	pool, err := pgxpool.New(b.Context(), u.String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func TestACommitWithoutAnAnswerIsLookedUpAndTheHandlerDoesNotRunTwice(t *testing.T) {
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

func TestACommitThatCannotBeLookedUpIsUnknown(t *testing.T) {
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

func TestAStoredEventWhoseCommitGotNoAnswerIsNotHandledTwice(t *testing.T) {
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
		out, err := in.Store(b.Context(), tx, e)
		if err == nil && out != Stored {
			err = fmt.Errorf("outcome %q, want stored", out)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

func TestEveryModeOfPgxWorks(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			pool, err := pgxpool.New(b.Context(), b.db.DSN+"?default_query_exec_mode="+mode)
			if strings.Contains(b.db.DSN, "?") {
				pool, err = pgxpool.New(b.Context(), b.db.DSN+"&default_query_exec_mode="+mode)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			in := b.inboxOn(pool)
			fail := atomic.Bool{}
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == "dead" {
					return retry.Permanent(errors.New("it's \"bad\""))
				}
				if e.ID == "retried" && fail.CompareAndSwap(false, true) {
					return errors.New("once")
				}
				return effectOf(ctx, tx, e)
			})
			full := event("full", "key's")
			full.Headers, full.Time, full.Payload = map[string]string{"a": "b'c\"d"}, time.Now(), []byte{0, 1, 0xff, '\''}
			b.receive(in, full, Handled)
			b.receive(in, full, Duplicate)
			conflict := full
			conflict.Payload = nil
			b.receive(in, conflict, Conflict)
			dead := full
			dead.ID = "dead"
			b.receive(in, dead, Dead)
			retried := full
			retried.ID = "retried"
			b.receive(in, retried, Retrying)
			tombstone := holdfast.Event{ID: "tombstone", Type: "order.placed", Topic: "orders", Key: "key's"}
			b.receive(in, tombstone, Stored)
			defer b.run(in.Run)()
			b.awaitOutcome("tombstone", Handled)
			if n := b.count("select count(*) from holdfast.letter where event_id = 'dead' and payload = '\\x0001ff27' and headers->>'a' = 'b''c\"d'"); n != 1 {
				t.Error("the letter does not hold the event as it came")
			}
			if n := b.count("select count(*) from holdfast.letter where event_id = 'full' and payload is null"); n != 1 {
				t.Error("the conflicting tombstone's payload is not null")
			}
		})
	}
}

func TestReceiveTxIsPartOfTheCallersTransaction(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil || e.ID != "bad" {
			return err
		}
		_, err := tx.Exec(ctx, "select 1/0")
		return err
	})
	undo := errors.New("undo")
	receive := func(e holdfast.Event, want Outcome, then error) {
		t.Helper()
		err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error {
			if out, err := in.ReceiveTx(b.Context(), tx, e); err != nil || out != want {
				t.Errorf("ReceiveTx(%s) = %q, %v; want %q", e.ID, out, err, want)
			}
			_, err := tx.Exec(b.Context(), "insert into effect (id) values ('caller of ' || $1)", e.ID)
			return errors.Join(err, then)
		})
		if then == nil && err != nil {
			t.Error(err)
		}
	}
	receive(event("1", "k"), Handled, undo)
	if b.count("select count(*) from effect") != 0 {
		t.Error("the handler's writes outlived the caller's rollback")
	}
	receive(event("1", "k"), Handled, nil)
	receive(event("1", "k"), Duplicate, nil)
	receive(event("bad", "k"), Retrying, nil)
	receive(event("behind", "k"), Stored, nil)
	if b.effects("bad") != 0 || b.effects("caller of bad") != 1 || b.effects("1") != 1 {
		t.Error("a failed handler did not leave exactly the caller's writes")
	}
	if n := b.count("select count(*) from holdfast.stored where event_id = 'bad' and attempts = 1"); n != 1 {
		t.Error("the failure was not recorded")
	}
}

// A partition's sender receives the events of each key one after the other, while Run handles what failed, on two nodes,
// in the same moments. Each key's effects must come in order, every event once, and nothing may be left asleep.
func TestFollowersOfAParkedKeyNeitherOvertakeNorAreForgotten(t *testing.T) {
	b := setup(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	failing := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if rand.IntN(10) == 0 {
			return errors.New("now and then")
		}
		return effectOf(ctx, tx, e)
	}
	var nodes []*Inbox
	for range 2 {
		in := b.inbox(func(c *Config) {
			c.Retry = retry.Policy{Attempts: 1000, Base: time.Microsecond, Cap: time.Millisecond}
			c.PollMax = 2 * time.Millisecond
		})
		in.Handle("order.placed", failing)
		nodes = append(nodes, in)
		// Without the sweep, which would wake what was forgotten.
		in.start()
		b.run(func(ctx context.Context) error {
			g := newGroup(ctx)
			g.run(in.workStored)
			return g.wait()
		})
	}
	const keys, each = 6, 70
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := range each {
				e := event(fmt.Sprintf("%d-%03d", k, i), fmt.Sprint(k))
				if _, err := nodes[i%2].Receive(b.Context(), e); err != nil {
					t.Error(err)
				}
				// At random moments, so that many arrive just as the queue before them ends.
				_ = pause(b.Context(), time.Duration(rand.Int64N(int64(12*time.Millisecond))))
			}
		})
	}
	wg.Wait()
	b.await("every event to be handled", func(o *telling) bool {
		n := 0
		for _, outcomes := range o.outcomes {
			if slices.Contains(outcomes, Handled) {
				n++
			}
		}
		return n == keys*each
	})
	if n := b.count("select count(*) from effect"); n != keys*each {
		t.Errorf("%d effects, want %d", n, keys*each)
	}
	if n := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) before from effect) x where before > id"); n != 0 {
		t.Errorf("%d events overtook another of their key", n)
	}
	if n := b.count("select count(*) from holdfast.stored"); n != 0 {
		t.Errorf("%d rows are still stored", n)
	}
	b.told.mu.Lock()
	defer b.told.mu.Unlock()
	stored := 0
	for _, outcomes := range b.told.outcomes {
		if slices.Contains(outcomes, Stored) {
			stored++
		}
	}
	t.Logf("%d of %d were stored behind another", stored, keys*each)
	if stored == 0 {
		t.Error("no event ever followed another: the test tests nothing")
	}
}

func TestTwoNodesShareTheStoredEventsAndKeepEachKeysOrder(t *testing.T) {
	b := setup(t)
	first := b.inbox()
	first.Handle("order.placed", effectOf)
	const n = 200
	for i := range n {
		b.store(first, event(fmt.Sprintf("%03d", i), fmt.Sprint(i%7)))
	}
	second := b.inbox()
	second.Handle("order.placed", effectOf)
	b.run(first.Run)
	b.run(second.Run)
	b.await("all", func(o *telling) bool { return len(o.outcomes) == n })
	if got := b.count("select count(*) from effect"); got != n {
		t.Errorf("%d effects, want %d", got, n)
	}
	if bad := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) before from effect) x where before > id"); bad != 0 {
		t.Errorf("%d events overtook another of their key", bad)
	}
}

func TestAWorkerWhoseLeaseWasTakenWritesNothing(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		// Another worker claims the event while this one is at it.
		pgtest.Exec(t, b.db, "update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour'")
		return effectOf(ctx, tx, e)
	})
	b.store(in, event("1", "k"))
	b.run(in.Run)
	b.await("the loss of the lease", func(o *telling) bool { return o.lost == 1 })
	if b.effects("1") != 0 || b.count("select count(*) from holdfast.stored") != 1 {
		t.Error("a worker without a lease changed something")
	}
}

func TestAStoredEventThatEndsItsProcessIsGivenUpAfterItsAttempts(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	b.store(in, event("2", "k"))
	// Three claims were committed, and no process came back from one.
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 3, lease_token = gen_random_uuid(), lease_until = now() - interval '1 second' where event_id = '1'")
	b.run(in.Run)
	b.awaitOutcome("1", Dead)
	b.awaitOutcome("2", Handled)
	if b.effects("1") != 0 {
		t.Error("it was run a fourth time")
	}
}

func TestALeaseFromAClockThatWasWrongRunsOut(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	pgtest.Exec(t, b.db, "update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '10 years'")
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
}

func TestATypeThatAnotherNodeDeclaresIsLeftForItWithItsKey(t *testing.T) {
	b := setup(t)
	older := b.inbox()
	older.Handle("order.placed", effectOf)
	newer := b.inbox()
	newer.Handle("order.placed", effectOf)
	newer.Handle("order.refunded", effectOf)
	refund := event("refund", "k")
	refund.Type = "order.refunded"
	unheard := event("unheard", "k")
	unheard.Type = "order.forgotten"
	b.receive(older, refund, Skipped)
	stop := b.run(newer.Run)
	b.await("the declaration", func(*telling) bool { return true })
	for b.count("select count(*) from holdfast.consumer_type where type = 'order.refunded' and seen_until > now()") == 0 {
		if err := pause(b.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	stop() // It restarts: what it declared is believed for a while.
	b.receive(older, refund, Stored)
	b.receive(older, event("2", "k"), Stored)
	b.receive(older, unheard, Skipped)
	b.run(older.Run)
	b.receive(older, event("other", "other"), Handled)
	again := b.inbox()
	again.Handle("order.refunded", effectOf)
	b.run(again.Run)
	b.awaitOutcome("2", Handled)
	if n := b.count("select count(*) from effect a join effect b on a.n < b.n where a.id = 'refund' and b.id = '2'"); n != 1 {
		t.Error("the key's order was not kept")
	}
}

func TestAnUnknownTypeIsStoredOrBuriedWhereConfigured(t *testing.T) {
	b := setup(t)
	b.receive(b.inbox(func(c *Config) { c.Unknown = UnknownStore }), event("1", "k"), Stored)
	b.receive(b.inbox(func(c *Config) { c.Unknown = UnknownDead }), event("2", "j"), Dead)
	if n := b.count("select count(*) from holdfast.letter where event_id = '2' and attempts = 0"); n != 1 {
		t.Error("no letter without attempts")
	}
}

func TestWhatTheTablesWouldRefuseIsRefusedAtTheDoor(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	for field, e := range map[string]holdfast.Event{
		"id is empty":              {Type: "t", Topic: "t"},
		"id has 256 bytes":         {ID: strings.Repeat("x", 256), Type: "t", Topic: "t"},
		"type is empty":            {ID: "1", Topic: "t"},
		"topic is empty":           {ID: "1", Type: "t"},
		`topic is "a b"`:           {ID: "1", Type: "t", Topic: "a b"},
		"key has 1025 bytes":       {ID: "1", Type: "t", Topic: "t", Key: strings.Repeat("k", 1025)},
		"source is \"a\\x00\"":     {ID: "1", Type: "t", Topic: "t", Source: "a\x00"},
		"key is \"\\xff\"":         {ID: "1", Type: "t", Topic: "t", Key: "\xff"},
		"header \"h\" has a value": {ID: "1", Type: "t", Topic: "t", Headers: map[string]string{"h": "\xff"}},
	} {
		if _, err := in.Receive(b.Context(), e); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error is %v, want it to say %q", err, field)
		}
	}
}

func TestRegisteringTwiceOrLateOrNothingPanicsWithItsReason(t *testing.T) {
	b := setup(t)
	panics := func(want string, f func()) {
		t.Helper()
		defer func() {
			if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), want) {
				t.Errorf("panic is %v, want %q", p, want)
			}
		}()
		f()
	}
	in := b.inbox()
	in.Handle("a", effectOf)
	panics("has a handler already", func() { in.Handle("a", effectOf) })
	panics("has a handler already", func() { in.HandleBatch("a", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil }) })
	panics("the handler is nil", func() { in.Handle("b", nil) })
	panics("type is empty", func() { in.Handle("", effectOf) })
	in.start()
	panics("has started", func() { in.Handle("c", effectOf) })
}

func TestAWrongConfigurationIsRefusedWithEveryProblem(t *testing.T) {
	_, err := New(nil, Config{
		Schema: "Bad", Workers: -2, Batch: -1, Timeout: -1, Window: time.Second, Unknown: "maybe", MaxHung: -1, Quick: 1000,
		Retry: retry.Policy{Attempts: -5}, PollMin: time.Second, PollMax: time.Millisecond, Grace: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"pool is nil", "schema is", "consumer is empty", "workers is -2", "batch is -1", "timeout is -1ns",
		"window is 1s", `unknown is "maybe"`, "max hung is -1", "quick is 1000", "Attempts is -5", "poll min is 1s", "grace is -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestTheTransactionOfAHandlerIsBounded(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if n := pgtest.Count(t, tx, "select count(*) from pg_settings where name in ('idle_in_transaction_session_timeout', 'lock_timeout') and setting::bigint > 0"); n != 2 {
			t.Error("the transaction has no idle_in_transaction_session_timeout or lock_timeout")
		}
		return nil
	})
	b.receive(in, event("1", "k"), Handled)
}
