package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func pgError(code string) error {
	return fmt.Errorf("update stock: %w", &pgconn.PgError{Code: code})
}

// misdeeds are what a handler may do to its transaction before it returns.
var misdeeds = map[string]struct {
	do    func(ctx context.Context, tx pgx.Tx) error
	alone Outcome // of an event of a partition, behind whose handler nothing but COMMIT comes; Dead if that fails, too
}{
	"it swallows an error":               {statement("select 1/0"), Dead},
	"it takes another role":              {statement("set local role pg_monitor"), Handled},
	"it takes another session's rights":  {statement("set local session authorization pg_monitor"), Handled},
	"it makes its transaction read only": {statement("set transaction read only"), Handled},
	"it rolls back and begins anew":      {statement("rollback; begin"), Dead},
	"it rolls back and goes on":          {statement("rollback and chain"), Dead},
	"it commits and goes on":             {statement("commit and chain"), Dead},
	"its function commits and goes on":   {statement("select 1; commit and chain"), Duplicate},
	"it commits unseen, and fails":       {unseen("commit"), Duplicate},
	"COMMIT is refused by a trigger":     {statement("insert into refused values ('P0001')"), Dead},
	"COMMIT is refused by a constraint":  {statement("insert into refused values ('23514')"), Dead},
	"COMMIT is refused by its data":      {statement("insert into refused values ('22012')"), Dead},
}

// statement is a handler that does not look at what its statement answers.
func statement(sql string) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, sql)
		return nil
	}
}

// unseen is a handler that goes past its transaction, and then fails.
func unseen(sql string) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Conn().Exec(ctx, sql)
		return errors.Join(errors.New("no"), err)
	}
}

// misdoing is an inbox whose handler does wrong with the events whose id begins with "bad".
func (b *bundle) misdoing(do func(ctx context.Context, tx pgx.Tx) error, change ...func(*Config)) *Inbox {
	b.Helper()
	pgtest.Exec(b, b.db, `create table if not exists refused (code text);
		create or replace function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused' using errcode = new.code; end $$;
		drop trigger if exists refuse on refused;
		create constraint trigger refuse after insert on refused deferrable initially deferred for each row execute function refuse()`)
	in := b.inbox(change...)
	in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		for _, e := range events {
			if err := effectOf(ctx, tx, e); err != nil {
				return err
			}
			if !strings.HasPrefix(e.ID, "bad") {
				continue
			}
			if err := do(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
	return in
}

func (b *bundle) deadAfter(id string, attempts int) {
	b.Helper()
	b.awaitOutcome(id, Dead)
	if n := b.count("select count(*) from holdfast.letter where event_id = $1 and (attempts = $2 or attempts = 1 and errors[1] like '%ended its transaction%')", id, attempts); n != 1 {
		b.Errorf("%s has no letter with its %d attempts", id, attempts)
	}
}

func TestReturned_AMisdeedOfAStoredEventsHandlerCostsAttempts(t *testing.T) {
	for name, m := range misdeeds {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.misdoing(m.do)
			b.store(in, event("bad", "k"))
			b.store(in, event("next", "k"))
			b.run(in.Run)
			b.deadAfter("bad", 3)
			b.awaitOutcome("next", Handled)
			if n := b.effects("bad"); n > 1 {
				t.Errorf("its effect happened %d times", n)
			}
		})
	}
}

func TestReturned_AMisdeedInAPartitionCostsAttempts(t *testing.T) {
	for name, m := range misdeeds {
		for _, batch := range []int{1, 10} {
			if m.alone == Duplicate && batch > 1 {
				continue // It commits the rows of events that it has not handled. Nobody can know.
			}
			t.Run(fmt.Sprintf("%s, batch %d", name, batch), func(t *testing.T) {
				b := setup(t)
				in := b.misdoing(m.do, func(c *Config) { c.BatchSize, c.Workers = batch, 1 })
				b.consumeFake(in, newFakeGeneration(logOf(event("1", "a"), event("bad", "k"), event("2", "b"))))
				b.awaitSettled(3)
				b.awaitOutcome("2", Handled)
				if m.alone == Dead {
					b.deadAfter("bad", 3)
				} else {
					b.awaitOutcome("bad", m.alone)
				}
				if b.effects("1") != 1 || b.effects("2") != 1 {
					t.Error("others bore it")
				}
			})
		}
	}
}

func TestReturned_AMisdeedInASerialReplayHoldsNobodyElse(t *testing.T) {
	for name, m := range misdeeds {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean)
				values ('billing', 'orders', 0, 0, false), ('billing', 'orders', 1, 0, false)`)
			in := b.misdoing(m.do)
			parts := newManyPartitions(logOf(event("bad", "k"), event("after", "o")), logOf(event("1", "a"), event("2", "b"), event("3", "c"), event("4", "d")))
			b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, parts) })
			b.await("the other partition", func(o *observations) bool { return o.settled["orders/1"] == 4 })
			b.awaitOutcome("after", Handled)
			if m.alone == Duplicate {
				b.awaitOutcome("bad", Duplicate)
				return
			}
			b.deadAfter("bad", 3)
			if n := b.count("select count(*) from holdfast.start"); n != 0 {
				t.Errorf("%d counted starts are left", n)
			}
		})
	}
}

// Somebody has put a trigger on the inbox's own table, which refuses an event at COMMIT, or at once. So nothing can be recorded of
// the event: neither that it is stored nor that it is dead.
func TestReturned_AnEventThatPostgresRefusesToRecordHoldsNobody(t *testing.T) {
	for name, deferred := range map[string]string{"at COMMIT": "deferrable initially deferred", "at once": "not deferrable"} {
		for _, table := range []string{"inbox", "stored"} {
			t.Run(table+" "+name, func(t *testing.T) {
				b := setup(t)
				in := b.inbox(func(c *Config) { c.Workers = 1 })
				in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
					if e.ID == "bad" && table == "stored" {
						return errors.New("no")
					}
					return effectOf(ctx, tx, e)
				})
				pgtest.Exec(t, b.db, `create function refuse() returns trigger language plpgsql as $$ begin
						if new.event_id = 'bad' then raise exception 'refused'; end if; return null;
					end $$;
					create constraint trigger refuse after insert on holdfast.`+table+" "+deferred+` for each row execute function refuse()`)
				b.consumeFake(in, newFakeGeneration(logOf(event("1", "a"), event("bad", "k"), event("2", "k"))))
				b.awaitSettled(3)
				b.awaitOutcome("2", Handled)
				b.awaitOutcome("bad", Dead)
				if n := b.count("select count(*) from holdfast.letter where event_id = 'bad' and reason = 'Postgres refuses to record what became of it' and errors[cardinality(errors)] like '%refused%'"); n != 1 {
					t.Error("it has no letter that says why")
				}
				if b.effects("bad") != 0 {
					t.Error("it had an effect")
				}
			})
		}
	}
}

func TestReturned_ASwallowedErrorInTheCallersTransactionIsCounted(t *testing.T) {
	b := setup(t)
	in := b.misdoing(misdeeds["it swallows an error"].do)
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "insert into effect (id) values ('the caller''s')"); err != nil {
			return err
		}
		out, err := in.ReceiveTx(t.Context(), tx, event("bad", "k"))
		if out != Retrying {
			t.Errorf("ReceiveTx = %q, %v; want it to be retried", out, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := b.count("select count(*) from holdfast.stored where attempts = 1 and cardinality(errors) = 1"); n != 1 {
		t.Error("no attempt was counted")
	}
	if b.effects("the caller's") != 1 || b.effects("bad") != 0 {
		t.Error("the caller's write is gone, or the handler's is not")
	}
}

func TestReturned_AHandlerThatEndsTheCallersTransactionIsAnError(t *testing.T) {
	b := setup(t)
	in := b.misdoing(statement("select 1; rollback"))
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if out, err := in.ReceiveTx(t.Context(), tx, event("bad", "k")); err == nil || !strings.Contains(err.Error(), "ended its transaction") {
		t.Errorf("ReceiveTx = %q, %v; want the error", out, err)
	}
	if n := b.count("select (select count(*) from holdfast.inbox) + (select count(*) from holdfast.letter)"); n != 0 {
		t.Errorf("%d rows were written outside the caller's transaction", n)
	}
}

func TestReturned_AHandlerThatTriesToEndTheCallersTransactionHarmsItNot(t *testing.T) {
	b := setup(t)
	in := b.misdoing(statement("commit"))
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := effectOf(t.Context(), tx, event("the caller's", "k")); err != nil {
		t.Fatal(err)
	}
	if out, err := in.ReceiveTx(t.Context(), tx, event("bad", "k")); err != nil || out != Dead {
		t.Errorf("ReceiveTx = %q, %v; want a dead letter", out, err)
	}
	if b.effects("the caller's") != 0 {
		t.Error("the caller's transaction was committed")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.effects("the caller's") != 1 || b.effects("bad") != 0 || b.count("select count(*) from holdfast.letter where event_id = 'bad'") != 1 {
		t.Error("the caller's write or the letter is gone, or the handler's write is not")
	}
}

// A setting that outlives the transaction breaks the next one's statements: not those of the handler that made it.
func TestReturned_ARoleThatAHandlerLeavesOnItsConnectionHoldsNobodyUp(t *testing.T) {
	for name, sql := range map[string]string{"role": "set role pg_monitor", "read only": "set session characteristics as transaction read only"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.db.PoolOf(t, 2)
			in := b.inboxOn(pool, func(c *Config) { c.Workers = 1 })
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := effectOf(ctx, tx, e); err != nil || e.ID != "00000" {
					return err
				}
				_, err := tx.Exec(ctx, sql)
				return err
			})
			b.store(in, event("stored", "other"))
			b.consumeFake(in, newFakeGeneration(logOf(keyed(20, 3)...)))
			b.awaitSettled(20)
			b.awaitOutcome("stored", Handled)
			if n := b.count("select count(*) from holdfast.inbox where attempts <> 1") + b.count("select count(*) from holdfast.letter"); n != 0 {
				t.Errorf("%d events paid for it", n)
			}
		})
	}
}

func TestReturned_ASuccessAfterTheDeadlineIsATimeOut(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout, c.Grace = 300*time.Millisecond, time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		<-ctx.Done() // It does half its work.
		return nil
	})
	b.receive(in, event("1", "a"), Retrying)
	if n := b.count("select count(*) from holdfast.stored where attempts = 1 and errors[1] like 'the handler was cancelled after 300ms, and then returned nil%'"); n != 1 {
		t.Error("the time-out is not recorded as one")
	}
	b.run(in.Run)
	b.deadAfter("1", 3)
	b.consumeFake(in, newFakeGeneration(logOf(event("2", "b"))))
	b.deadAfter("2", 3)
	if n := b.count("select count(*) from effect"); n != 0 {
		t.Errorf("%d halves of effects were kept", n)
	}
}

func TestReturned_ASuccessAfterAStopIsNoSuccess(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	ctx, cancel := context.WithCancel(b.Context())
	in.Handle("order.placed", func(hctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(hctx, tx, e); err != nil {
			return err
		}
		cancel()
		<-hctx.Done()
		return nil
	})
	if out, err := in.Receive(ctx, event("1", "k")); err == nil {
		t.Errorf("Receive = %q", out)
	}
	if n := b.count("select (select count(*) from holdfast.inbox) + (select count(*) from holdfast.stored) + (select count(*) from effect)"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// The first node to notice such a connection may be the one that declares its types, which ends when it has no rights.
func TestReturned_ARoleLeftOnAllConnectionsDoesNotEndRun(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	pool := b.db.PoolOf(t, 2)
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	var left []*pgxpool.Conn
	for range 2 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "set role pg_monitor"); err != nil {
			t.Fatal(err)
		}
		left = append(left, conn)
	}
	for _, conn := range left {
		conn.Release()
	}
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- in.Run(ctx) }()
	declared := wait.For(wait.Limit(), func() bool {
		return len(ended) > 0 || b.count("select count(*) from holdfast.consumer_type") == 1
	})
	stop()
	if err := <-ended; err != nil || !declared {
		t.Errorf("Run ended with %v", err)
	}
}
