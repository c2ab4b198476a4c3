package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/problems"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

func TestDoor_EveryModeOfPgxWorks(t *testing.T) {
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
			b.try(in.TryReceive, event("tried", ""), Handled, nil)
			b.try(in.TryStore, event("tried", ""), Duplicate, nil)
			for i, version := range []int64{-1, -1, -2} {
				if fresh := b.askTies(in, "order/1", version); fresh != (i < 2) {
					t.Errorf("the watermark with ties says %v of version %d", fresh, version)
				}
			}
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

func TestDoor_ReceiveTxIsPartOfTheCallersTransaction(t *testing.T) {
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

func TestDoor_ATypeThatAnotherNodeDeclaresIsLeftForItWithItsKey(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
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
	b.await("the declaration", func(*observations) bool { return true })
	wait.Until(t, "the type is declared", func() bool {
		return b.count("select count(*) from holdfast.consumer_type where type = 'order.refunded' and seen_until > now()") > 0
	})
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

func TestDoor_AnUnknownTypeIsStoredOrADeadLetterWhereConfigured(t *testing.T) {
	b := setup(t)
	b.receive(b.inbox(func(c *Config) { c.UnknownType = UnknownStore }), event("1", "k"), Stored)
	b.receive(b.inbox(func(c *Config) { c.UnknownType = UnknownDead }), event("2", "j"), Dead)
	if n := b.count("select count(*) from holdfast.letter where event_id = '2' and attempts = 0"); n != 1 {
		t.Error("no letter without attempts")
	}
}

func TestDoor_WhatTheTablesWouldRefuseIsRefusedAtTheDoor(t *testing.T) {
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
		"key of 1 bytes is not":    {ID: "1", Type: "t", Topic: "t", Key: "\xff"},
		"header \"h\" has a value": {ID: "1", Type: "t", Topic: "t", Headers: map[string]string{"h": "\xff"}},
	} {
		if _, err := in.Receive(b.Context(), e); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error is %v, want it to say %q", err, field)
		}
	}
}

func TestDoor_RegisteringTwiceOrLateOrNothingPanicsWithItsReason(t *testing.T) {
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
	in.registry.start()
	panics("has started", func() { in.Handle("c", effectOf) })
}

func TestDoor_AWrongConfigurationIsRefusedWithEveryProblem(t *testing.T) {
	_, err := New(nil, Config{
		Schema: "Bad", Workers: -2, BatchSize: -1, Timeout: -1, Retention: time.Second, UnknownType: "maybe", MaxHung: -1, ImmediateRetries: 1000,
		Retry: retry.Policy{Attempts: -5}, PollMin: time.Second, PollMax: time.Millisecond, Grace: -1,
		StopTimeout: 2 * time.Hour, MaxStored: -2, MaxStoredKey: -2, LetterPayload: -2, DeadLetterTopic: "a b",
	})
	if err == nil {
		t.Fatal("no error")
	}
	problems.HaveForm(t, err)
	for _, want := range []string{"pool is nil", "schema is", "consumer is empty", "workers is -2", "batch size is -1", "timeout is -1ns",
		"retention is 1s", `unknown type is "maybe"`, "max hung is -1", "immediate retries is 1000", "retry attempts is -5", "poll min is 1s", "grace is -1ns",
		"stop timeout is 2h", "max stored is -2", "max stored key is -2", "letter payload is -2", "a b"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestDoor_TheTransactionOfAHandlerIsBounded(t *testing.T) {
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

func TestDoor_ATypeOfANodeLongUnheardIsStoredAndSeenToWait(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	older := b.inbox()
	older.Handle("order.placed", effectOf)
	refund := func(id string) holdfast.Event {
		e := event(id, "k")
		e.Type = "order.refunded"
		return e
	}
	heardOf := func(ago time.Duration) {
		pgtest.Exec(t, b.db, "delete from holdfast.consumer_type")
		pgtest.Exec(t, b.db, older.sql.declare, "billing", []string{"order.refunded"}, "cut off", (-ago).Microseconds(), []string{"{}"})
	}
	heardOf(believeFor - time.Minute)
	b.receive(older, refund("1"), Stored)
	in := b.inbox(func(c *Config) { c.UnknownType = UnknownDead })
	b.receive(in, refund("2"), Stored)
	b.consumeFake(older, newFakeGeneration(logOf(refund("3"), event("last", "other"))))
	b.awaitOutcome("last", Handled)
	b.awaitOutcome("3", Stored)
	if all, unhandled := b.waiting(waiting.Filter{}), b.waiting(waiting.Filter{Why: waiting.NoHandler}); len(all) != 3 || len(unhandled) != 3 {
		t.Errorf("what waits: %+v, of which nobody handles %+v; want 3 events, all of a type that nobody works", all, unhandled)
	}
	heardOf(believeFor + time.Second)
	b.receive(older, refund("4"), Skipped)
	b.receive(in, refund("5"), Dead)

	back := b.inbox()
	back.Handle("order.refunded", effectOf)
	b.run(back.Run)
	for _, id := range []string{"1", "2", "3"} {
		b.awaitOutcome(id, Handled)
	}
}
