package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// Another node finds that it is back, and this one learns it by a look.
func TestTrial_ATypeWithALimitContinuesAfterALook(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf, Needs("stripe"), WithConcurrency(2))
	b.run(in.Run)
	pgtest.Exec(t, b.db, "insert into holdfast.dependency (consumer, name, away, until) values ('billing', 'stripe', true, now() + interval '1 hour')")
	b.knowsAway(in, "order.placed", true)
	b.stores(in, event("1", "k"))
	pgtest.Exec(t, b.db, "update holdfast.dependency set away = false")
	b.awaitOutcome("1", Handled)
}

// An event that says so once is not its own witness: the good one of another key that is stored after it tries first, and no try counts.
func TestTrial_ABadEventIsTriedAfterAGoodOne(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	b := setup(t)
	var stored, handled, early sync.Map // by the number of an event
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		what, n, _ := strings.Cut(e.ID, " ")
		if what == "good" {
			handled.Store(n, true)
			return effectOf(ctx, tx, e)
		}
		if _, again := early.LoadOrStore(n, false); !again {
			return Unavailable("stripe", io.EOF)
		}
		_, there := stored.Load(n)
		_, done := handled.Load(n)
		early.Store(n, there && !done)
		return effectOf(ctx, tx, e)
	}, Needs("stripe"))
	b.run(in.Run)
	for i := range 5 {
		n := fmt.Sprint(i)
		bad := event("bad "+n, "bad")
		bad.Topic = "topic-" + n
		b.receive(in, bad, Stored)
		if out, err := in.Receive(t.Context(), event("good "+n, n)); err != nil {
			t.Fatal(err)
		} else if out == Stored {
			stored.Store(n, true)
		}
		b.awaitOutcome("good "+n, Handled)
		b.awaitOutcome("bad "+n, Handled)
		if n := b.count("select max(tries) from holdfast.dependency"); n != 0 {
			t.Fatalf("%d tries count after a word that others disproved", n)
		}
		b.knowsAway(in, "order.placed", false)
		if was, _ := early.Load(n); was == true {
			t.Errorf("bad %s tried before good %s, which was stored", n, n)
		}
	}
	if b.count("select count(*) from effect") != 10 {
		t.Error("not each was handled once")
	}
	counts := 0
	stored.Range(func(any, any) bool { counts++; return true })
	if counts == 0 {
		t.Error("no good event was stored, so that nothing is shown")
	}
}

// Two events on which the provider always fails do not stop the others: one that was handled speaks against both.
func TestTrial_BadEventsDoNotConfirmEachOtherBesideGoodOnes(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf, Needs("stripe", "mail"))
	in.Handle("order.mailed", effectOf)
	dp := in.receiver.dependencies
	slow := time.Now()
	says := func(id, name string, doubts int) (believed bool) {
		f := &failure.Error{Fault: failure.FaultUnavailable, Err: &failure.HandlerError{Err: Unavailable(name, io.EOF), Began: time.Now()}}
		dp.blamed(t.Context(), f, []holdfast.Event{event(id, "")}, failure.History{Doubts: doubts})
		dp.told()
		pgtest.Exec(t, b.db, "update holdfast.dependency set away = false")
		dp.mu.Lock()
		defer dp.mu.Unlock()
		believed = dp.away[name] != nil
		dp.returns(name)
		return believed
	}
	for i, row := range []struct {
		id, name string
		doubts   int
		good     string // which is handled before
		want     bool
	}{
		{"a", "stripe", 1, "", false},
		{"b", "stripe", 1, "order.placed", false},
		{"a", "stripe", 2, "order.placed", false},
		{"a", "mail", 1, "", false},                // of another name
		{"b", "stripe", 2, "order.mailed", true},   // what needs nothing proves nothing
		{"a", "stripe", 3, "", false},              // That ended what was said before.
		{"b", "stripe", 3, "slow", true},           // It had begun before all of this.
		{"new", "stripe", 0, "order.placed", true}, // Nothing speaks against it.
	} {
		switch row.good {
		case "":
		case "slow":
			dp.worked("order.placed", slow)
		default:
			good := event(fmt.Sprint("good ", i), "")
			good.Type = row.good
			b.receive(in, good, Handled)
		}
		if got := says(row.id, row.name, row.doubts); got != row.want {
			t.Errorf("%d: %s is believed of %s: %t, want %t", i, row.id, row.name, got, row.want)
		}
	}
}

// All that is stored has tried it, one call got through, and it is away again: another event's word confirms that of the first.
func TestTrial_ASecondOutageIsBelieved(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	b := setup(t)
	var let atomic.Int64
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if let.Add(-1) < 0 {
			return Unavailable("stripe", io.EOF)
		}
		return effectOf(ctx, tx, e)
	}, Needs("stripe"))
	for i := range 4 {
		b.receive(in, event(fmt.Sprint(i), ""), Stored)
	}
	b.run(in.Run)
	wait.Until(t, "three have tried", func() bool { return b.count("select count(*) from holdfast.stored where losses > 100") >= 3 })
	let.Store(1)
	wait.Until(t, "one was handled", func() bool { return b.count("select count(*) from effect") == 1 })
	wait.Until(t, "it is away again", func() bool {
		return b.count("select count(*) from holdfast.dependency where away and since > (select processed_at from holdfast.inbox where result = 'handled')") == 1
	})
	if n := b.count("select count(*) from holdfast.stored where cardinality(errors) > 0"); n != 0 {
		t.Errorf("%d events spent attempts", n)
	}
	let.Store(1000)
	b.nothingStored()
}

// As many events are stored as may be, none of which needs it. One more may be stored, to try it.
func TestTrial_AQueueThatIsFullOfOthersEndsNoTries(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox(func(c *Config) {
		c.MaxStored = 5
		c.Retry = retry.Policy{Attempts: 5, Base: time.Hour, Cap: time.Hour}
	})
	in.Handle("order.placed", p.handler, Needs("stripe"))
	in.Handle("order.mailed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("not yet") })
	for i := range 5 {
		b.receive(in, mailed(fmt.Sprint("m", i), ""), Retrying)
	}
	b.run(in.Run)
	if out, err := in.Receive(t.Context(), event("1", "")); !errors.Is(err, ErrFull) {
		t.Fatalf("%q, %v: want ErrFull", out, err)
	}
	p.away.Store(false)
	wait.Until(t, "an event may be stored", func() bool {
		out, err := in.Receive(t.Context(), event("1", ""))
		return err == nil && (out == Stored || out == Handled)
	})
	b.awaitOutcome("1", Handled)
	if n := b.count("select count(*) from holdfast.stored"); n != 5 {
		t.Errorf("%d events are stored, want 5", n)
	}
}

// What a handler saw that began before it was back says nothing of what is now.
func TestTrial_AStragglersWordIsOld(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	began, end := make(chan struct{}), make(chan struct{})
	var first sync.Once
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "slow" {
			straggles := false
			first.Do(func() { straggles = true })
			if straggles {
				close(began)
				<-end
				return Unavailable("stripe", io.EOF)
			}
		}
		return p.handler(ctx, tx, e)
	}, Needs("stripe"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if out, err := in.Receive(t.Context(), event("slow", "")); out != Stored || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	}()
	<-began
	b.receive(in, event("1", ""), Stored)
	b.run(in.Run)
	p.away.Store(false)
	b.awaitOutcome("1", Handled)
	b.knowsAway(in, "order.placed", false)
	close(end)
	<-done
	if in.receiver.dependencies.waits("order.placed") {
		t.Error("it was believed")
	}
	b.awaitOutcome("slow", Handled)
}

// The answer to a try is written again after a failure: nobody waits for the end of its claim, which is a minute.
func TestTrial_WhatItFoundOutIsWrittenAgain(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe"))
	b.receive(in, event("1", ""), Stored)
	b.receive(in, event("2", ""), Stored)
	b.awayInDatabase()
	pgtest.Exec(t, b.db, "create sequence once; grant all on sequence once to public")
	pgtest.Exec(t, b.db, `create function refuse() returns trigger language plpgsql as $$ begin
		if old.away and not new.away and nextval('once') = 1 then raise 'conflict' using errcode = '40P01'; end if; return new; end $$`)
	pgtest.Exec(t, b.db, "create trigger refuse before update on holdfast.dependency for each row execute function refuse()")
	p.away.Store(false)
	begun := time.Now()
	b.run(in.Run)
	wait.Until(t, "both are handled", func() bool { return b.count("select count(*) from effect") == 2 })
	if took := time.Since(begun); took > in.lease()/2 {
		t.Errorf("that took %s of a claim of %s", took, in.lease())
	}
}

// A pause that comes while a try waits for a worker is kept.
func TestTrial_APauseIsKept(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	began, end := make(chan struct{}), make(chan struct{})
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	in.Handle("order.placed", p.handler, Needs("stripe"))
	in.Handle("order.mailed", func(context.Context, pgx.Tx, holdfast.Event) error { close(began); <-end; return nil })
	b.receive(in, event("1", ""), Stored)
	b.awayInDatabase()
	pgtest.Exec(t, b.db, "update holdfast.dependency set until = now() + interval '1 hour'")
	b.stores(in, mailed("m", ""))
	b.run(in.Run)
	<-began
	pgtest.Exec(t, b.db, "update holdfast.dependency set until = now()")
	wait.Until(t, "a try is due", func() bool {
		types, _, _ := in.receiver.dependencies.due(in.registry.types, time.Now())
		return len(types) == 1
	})
	b.pauses(billing)
	b.knows(in, true)
	was := p.calls.Load()
	close(end)
	b.awaitOutcome("m", Handled)
	// sleep: that no handler begins has no event to wait for. Its worker is free now.
	time.Sleep(500 * time.Millisecond)
	if n := p.calls.Load() - was; n != 0 {
		t.Errorf("%d handlers began after the pause was known", n)
	}
}

// A database that refuses what a node has found, though it answers, is believed in the end.
func TestTrial_ANodeThatCannotTellGivesItsWordUp(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe"))
	pgtest.Exec(t, b.db, "create function refuse() returns trigger language plpgsql as $$ begin raise 'never' using errcode = 'P0001'; end $$")
	pgtest.Exec(t, b.db, "create trigger refuse before insert on holdfast.dependency for each row execute function refuse()")
	b.receive(in, event("1", ""), Stored)
	p.away.Store(false)
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
}

// An error whose methods panic is an error like others, also of a dependency.
func TestTrial_AnErrorThatMayPanicIsAnErrorLikeOthers(t *testing.T) {
	b := setup(t)
	for i, bad := range badly.Errors() {
		in := b.inbox(func(c *Config) {
			c.Consumer = fmt.Sprint("consumer ", i)
			c.RedactErrorFunc = error.Error
		})
		in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return Unavailable("stripe", bad.Err) }, Needs("stripe"))
		if out, err := in.Receive(t.Context(), event("1", "")); err != nil || out != Stored && out != Retrying && out != Dead {
			t.Errorf("%s: %q, %v", bad.Name, out, err)
		}
		in.receiver.dependencies.told()
	}
}

// Nobody knows whose values the error of a batch has.
func TestTrial_TheErrorOfABatchIsWithheld(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setupKafka(t, 1)
	var log logtest.Log
	in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	in.HandleBatch("order.placed", func(_ context.Context, _ pgx.Tx, es []holdfast.Event) error {
		return Unavailable("stripe", fmt.Errorf("charge card of %s: %w", es[len(es)-1].Payload, io.ErrUnexpectedEOF))
	}, Needs("stripe"))
	b.produce(0, b.events(0, 50)...)
	b.consume(in)
	b.awayInDatabase()
	wait.Until(t, "all are stored", func() bool { return b.count("select count(*) from holdfast.stored") == 50 })
	if n := b.count("select count(*) from holdfast.dependency where error like '%payload of%'"); n != 0 || len(log.String()) == 0 {
		t.Errorf("the row has what a handler said of an event; the log says %q", log.String())
	}
}

// It works in every way in which pgx talks to Postgres, on pools as small as they may be.
func TestTrial_EveryModeOfPgx(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	for i, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
		c := b.db.Config().Copy()
		c.ConnConfig.DefaultQueryExecMode = mode
		c.MaxConns = []int32{2, 2, 1}[i]
		pool, err := pgxpool.NewWithConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var p provider
		p.away.Store(true)
		in := b.inboxOn(pool, func(c *Config) { c.Consumer = fmt.Sprint("consumer ", i) })
		in.Handle("order.placed", p.handler, Needs("stripe"))
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			out, err := in.ReceiveTx(t.Context(), tx, event(fmt.Sprint(i, " first"), "k"))
			if out != Stored {
				t.Errorf("%s: ReceiveTx: %q", mode, out)
			}
			return err
		}); err != nil {
			t.Fatal(mode, err)
		}
		stop := b.run(in.Run)
		b.receive(in, event(fmt.Sprint(i, " second"), "k"), Stored)
		p.away.Store(false)
		wait.Until(t, "both are handled", func() bool { return b.effects(fmt.Sprint(i, " first"))+b.effects(fmt.Sprint(i, " second")) == 2 })
		stop()
		pool.Close()
	}
}
