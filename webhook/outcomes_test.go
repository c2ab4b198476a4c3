package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W17.
func TestOutcomes_ADeliveryThatIsStoredIsAcknowledgedBeforeItsHandlerEnds(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	s := b.shop(func(c *Config) { c.Mode = StoreFirst })
	b.run()
	open := b.gate("1")
	h, body := order("1")
	b.want(202, s, h, body)
	<-b.begun // and goes on for as long as it likes
	if b.effects() != 0 || b.count("select count(*) from holdfast.stored where event_id = '1'") != 1 {
		t.Error("it is not stored, or has been handled")
	}
	b.want(200, s, h, body) // It is durable, so that a copy need not come again.
	open()
	b.await("1", inbox.Handled)
	b.want(200, s, h, body)
	if b.effects() != 1 {
		t.Errorf("%d effects, want 1", b.effects())
	}
}

// W18.
func TestOutcomes_WhatKeepsFailingBecomesALetterAndCanBeReplayed(t *testing.T) { // the rest is shown by package inbox
	for _, mode := range []Mode{Inline, StoreFirst} {
		t.Run(string(mode), func(t *testing.T) {
			b := setup(t)
			s := b.shop(func(c *Config) { c.Mode = mode; c.KeyFunc = func(d Delivery, _ []byte) string { return "customer-1" } })
			b.failWith("1", errors.New("not in stock"))
			h, body := order("1")
			b.want(202, s, h, body)
			b.run()
			b.await("1", inbox.Dead)
			if n := b.count("select count(*) from holdfast.letter where event_id = '1' and attempts = 3 and cardinality(errors) = 3 and state = 'open' and key = 'customer-1'"); n != 1 {
				t.Errorf("%d letters with three errors, want 1", n)
			}
			b.want(200, s, h, body) // It has been given up; sending it again changes nothing.
			b.failWith("1", nil)
			replay(b)
			b.await("1", inbox.Handled)
			if b.effects() != 1 {
				t.Errorf("%d effects, want 1", b.effects())
			}
		})
	}
}

// W20.
func TestOutcomes_ATypeThatNobodyHandlesIsAcknowledgedAndCounted(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	for _, mode := range []Mode{Inline, StoreFirst} {
		s := b.receiver("github", must(GitHub(githubSecret)), func(c *Config) { c.Mode = mode })
		h, err := sign.GitHub("1", "ping", []byte("{}"), githubSecret)
		if err != nil {
			t.Fatal(err)
		}
		b.want(200, s, h, "{}")
		if a := b.lastAnswer(); a.Outcome != inbox.Skipped || a.Delivery.Type != "ping" {
			t.Errorf("%s: told %+v", mode, a)
		}
	}
	if n := b.count("select count(*) from holdfast.inbox") + b.count("select count(*) from holdfast.stored"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	// A body without a type has one all the same, for a handler that takes everything.
	h, _ := sign.Standard("1", now, []byte("plain"), macSecret)
	b.want(200, b.shop(), h, "plain")
	b.await("1", inbox.Skipped)
	s := b.shop(func(c *Config) { c.TypeFunc = func(Delivery, []byte) string { return "order.placed" } })
	b.want(200, s, h, "plain")
	if b.effects() != 1 {
		t.Error("TypeFunc was not asked")
	}
}

// W21.
func TestOutcomes_AHandlersFailureIsTheInboxesToFixAndNotTheSenders(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	s := b.shop()
	b.failWith("1", errors.New("not yet"))
	h, body := order("1")
	b.want(202, s, h, body) // durable, and tried again here
	b.failWith("2", retry.Permanent(errors.New("never")))
	h2, body2 := order("2")
	b.want(200, s, h2, body2) // a letter, and sending it again would not help
	if n := b.count("select count(*) from holdfast.letter where event_id = '2' and state = 'open'"); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
	b.failWith("1", nil)
	b.run()
	b.await("1", inbox.Handled)
}

// W21.
func TestOutcomes_WhatNothingWasDecidedOnIsToComeAgain(t *testing.T) {
	t.Run("the queue is full", func(t *testing.T) {
		b := setup(t, func(c *inbox.Config) { c.MaxStoredKey = 1 })
		s := b.shop(func(c *Config) {
			c.Mode = StoreFirst
			c.KeyFunc = func(Delivery, []byte) string { return "k" }
			c.RetryAfter = 1500 * time.Millisecond
		})
		b.want(202, s, must2(order("1")), `{"type":"order.placed","order":"1"}`)
		r := b.want(503, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
		if !errors.Is(b.lastAnswer().Err, inbox.ErrFull) || r.header.Get("Retry-After") != "2" {
			t.Errorf("told %+v, Retry-After %q", b.lastAnswer(), r.header.Get("Retry-After"))
		}
	})
	t.Run("the table is locked away for a moment", func(t *testing.T) {
		b := setup(t)
		// One that waits for no longer than this, and another that has all the time it needs.
		hurried := b.inbox(func(c *inbox.Config) { c.Timeout, c.Grace = 50*time.Millisecond, 50*time.Millisecond })
		s := b.receiverOf(hurried, "shop", must(Standard(macSecret)))
		tx, err := b.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Exec(t, tx, "lock table holdfast.inbox")
		h, body := order("1")
		b.want(503, s, h, body)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.want(200, b.shop(), h, body)
	})
	t.Run("too many are in hand", func(t *testing.T) {
		b := setup(t)
		s := b.shop(func(c *Config) { c.Workers, c.Wait = 1, -1 })
		open := b.gate("1")
		h, body := order("1")
		first := b.held(s, h, body)
		b.want(503, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
		if !errors.Is(b.lastAnswer().Err, errBusy) {
			t.Errorf("told %+v", b.lastAnswer())
		}
		b.want(401, s, must2(order("2")), "forged") // Who forges takes no turn, and is told nothing new.
		open()
		if r := <-first; r.status != 200 {
			t.Errorf("the first is answered %d", r.status)
		}
		b.want(200, s, must2(order("2")), `{"type":"order.placed","order":"2"}`)
	})
}

// W17.
func TestOutcomes_ASenderThatGoesAwayLeavesItsDeliveryToBeHandled(t *testing.T) { // one that never waits for as long as that
	b := setup(t)
	s := b.shop()
	open := b.gate("1")
	h, body := order("1")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := send(ctx, s.URL, "POST", h, strings.NewReader(body))
		left <- err
	}()
	<-b.begun
	leave()
	if err := <-left; err == nil {
		t.Fatal("it was answered")
	}
	open()
	b.await("1", inbox.Handled)
	b.want(200, s, h, body)
	if b.effects() != 1 {
		t.Errorf("%d effects, want 1", b.effects())
	}
}

func TestOutcomes_TheAnswerToEachOutcome(t *testing.T) {
	for out, want := range map[inbox.Outcome]int{inbox.Handled: 200, inbox.Duplicate: 200, inbox.Skipped: 200, inbox.Dead: 200,
		inbox.Stored: 202, inbox.Retrying: 202, inbox.Conflict: 409} {
		if got := statusOf(out, nil); got != want {
			t.Errorf("%s is answered %d, want %d", out, got, want)
		}
	}
	for _, err := range []error{inbox.ErrInFlight, inbox.ErrFull, inbox.ErrOutcomeUnknown, inbox.ErrHungHandlers, context.DeadlineExceeded} {
		if got := statusOf("", err); got != 503 {
			t.Errorf("%v is answered %d, want 503", err, got)
		}
	}
	var problem struct {
		Title  string
		Status int
	}
	rec := recorder()
	writeProblem(rec, 503, time.Nanosecond)
	if err := json.NewDecoder(bytes.NewReader(rec.Body.Bytes())).Decode(&problem); err != nil || problem.Status != 503 || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("%s, %v, Retry-After %q", rec.Body, err, rec.Header().Get("Retry-After"))
	}
}
