package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	c.self = self
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestRefunds_WithoutAnyServerTheStoryOfTheRefundsIsToldToItsEnd(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	t.Parallel()
	text := exampletest.ToItsEnd(t, telling(config{}), len(promises),
		"409  another amount under its key: idempotency.payload_mismatch",
		"422  more than was paid", "after 4 attempts", "it was asked 4 times, and paid 1", "402  the same: rf_",
		"50 times", "another node", "nobody has to ask", "each of the 7 payouts",
		"idempotent.created 11, idempotent.replayed 53, idempotent.conflict 1.")
	if lines := strings.Count(text, "\n"); lines > 50 {
		t.Errorf("the story has %d lines, which is more than a screen", lines)
	}
}

func TestRefunds_ADatabaseThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "refunds", telling(config{DatabaseURL: db.DSN}))
}

func TestRefunds_AServiceThatForgetsKeysBreaksThePromises(t *testing.T) {
	t.Parallel()
	exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, forgetful: true}), "what is asked for once more is answered")
}

// Each promise is broken by hand, one at a time, in what a story has left.
func TestRefunds_EveryPromiseIsFoundWhenItIsBroken(t *testing.T) {
	t.Parallel()
	s := &story{Story: stories.Story{Out: io.Discard}, config: config{DatabaseURL: pgtest.New(t).DSN, self: self}}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, chapter := range []func(context.Context) error{s.start, s.refunded, s.notified, s.audit} {
		if err := chapter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(t.Context(), s.Pool, promises); err != nil {
		t.Fatalf("before anything is broken: %v", err)
	}
	for _, c := range []struct{ name, by, promise string }{
		{"a refund is made twice", "insert into refunds select id || 'x', charge, cents, state, receipt from refunds", promises[0].Text},
		{"a refund does not arrive", "update refunds set state = 'pending'", promises[0].Text},
		{"a refund is paid twice", "insert into statement select id || 'x', kind, reference, cents from statement where kind = 'payouts'", promises[1].Text},
		{"a refund is not paid", "delete from statement where kind = 'payouts'", promises[1].Text},
		{"what was not asked for is paid", "insert into statement values ('x', 'payouts', 'rf_none', 100)", promises[1].Text},
		{"a refund is booked twice", "insert into ledger (reference, cents) select reference, cents from ledger where cents < 0", promises[2].Text},
		{"a refund is not booked", "delete from ledger where cents < 0", promises[2].Text},
		{"a payment is booked twice", "insert into ledger (reference, cents) select reference, cents from ledger where cents > 0", promises[3].Text},
		{"an event is missing", "delete from SCHEMA.event where type = 'refund.requested'", promises[4].Text},
		{"a request is left half done", "update SCHEMA.idempotency set state = 'pending', status = null, headers = null, body = null, body_hash = null, fence = 1, run = 1, lease_until = now()", promises[5].Text},
		{"an event is published twice", "insert into SCHEMA.event select * from SCHEMA.event where type = 'payment.captured'", promises[4].Text},
	} {
		t.Run(c.name, func(t *testing.T) {
			tx, err := s.Pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			pgtest.Exec(t, tx, strings.ReplaceAll(c.by, "SCHEMA", s.Schema))
			if err := s.Check(t.Context(), tx, promises); err == nil || !strings.Contains(err.Error(), "a promise did not hold: "+c.promise) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

func TestRefunds_TheCommandExitsWithStatusOneWhereItHasNoServer(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "refunds")
}
