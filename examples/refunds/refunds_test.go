package main

import (
	"fmt"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// Four refunds, each looked at from all sides: the database, the gateway, logs, metrics and traces.

// R5.
func TestRefunds_TheSameKeyTwiceIsTheSameRefundAndOneLedgerEntry(t *testing.T) {
	b := setup(t)
	const key = "refund:ch_paid:1000:6f6c0001"
	first := b.refund(b.shop, key, 1000)
	b.is(first, 201, "")
	again := b.refund(b.shop, key, 1000)
	b.same(first, again)
	if first.id == "" || again.id != first.id {
		t.Errorf("the refund is %q, and then %q", first.id, again.id)
	}
	if status := b.deliver(first.id); status != 200 {
		t.Errorf("the webhook is answered %d", status)
	}
	b.kept(1, 1, 1)
	b.published(map[string]int{"refund.requested": 1, "refund.succeeded": 1})
	b.oneKey(b.logged("idempotent request", "created", "replayed"), key)
	b.counted(1, 1, 0)
	b.attempts("attempt=1 status=201", "attempt=1 status=201")
	b.starts("attempt=1", "attempt=")
}

// R13.
func TestRefunds_AnotherKeyWithTheSamePayloadIsANewRefund(t *testing.T) {
	b := setup(t)
	first := b.refund(b.shop, "refund:ch_paid:6000:6f6c0001", 6000)
	b.is(first, 201, "")
	// Of 100.00 a second 60.00 is not left; 40.00 are, and the policy goes by what was given back.
	b.is(b.refund(b.shop, "refund:ch_paid:6000:6f6c0002", 6000), 422, "VALIDATION.amount")
	b.kept(1, 0, 1)
	second := b.refund(b.shop, "refund:ch_paid:2000:6f6c0003", 2000)
	b.is(second, 201, "")
	third := b.refund(b.shop, "refund:ch_paid:2000:6f6c0004", 2000)
	b.is(third, 201, "")
	if second.id == third.id || second.replayed || third.replayed {
		t.Errorf("the refunds are %s and %s, want two", second.body, third.body)
	}
	for _, a := range []answer{first, second, third} {
		if status := b.deliver(a.id); status != 200 {
			t.Errorf("the webhook of %s is answered %d", a.id, status)
		}
		if n := b.count("select count(*) from ledger where reference = $1", a.id); n != 1 {
			t.Errorf("%s has %d entries, want 1", a.id, n)
		}
	}
	b.kept(3, 3, 3)
	keys := map[string]bool{}
	for _, l := range b.logged("idempotent request", "created", "forgotten", "created", "created") {
		keys[l.Key] = true
	}
	if len(keys) != 4 {
		t.Errorf("the log names %d keys, want 4", len(keys))
	}
	b.counted(3, 0, 0) // The refusal is not stored: what is left may be enough tomorrow.
	b.attempts("attempt=1 status=201", "attempt=1 status=422", "attempt=1 status=201", "attempt=1 status=201")
}

// R48.
func TestRefunds_AGatewayTimeoutAndARetryWithTheSameKeyIsOnePayout(t *testing.T) {
	for _, c := range []struct {
		name     string
		troubles []trouble
		answers  []int // of the tries
	}{
		{"it has paid", []trouble{hangsAfter}, []int{504, 201}},
		{"it has not paid", []trouble{hangsBefore}, []int{504, 201}},
		{"it has paid, and is away then", []trouble{hangsAfter, away}, []int{504, 503, 201}},
		{"it has not paid, and then it has, and does not answer again", []trouble{hangsBefore, hangsAfter}, []int{504, 504, 201}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			b.expect(c.troubles...)
			const key = "refund:ch_paid:1000:6f6c0001"
			patient := b.client("teashop", once)
			var a answer
			var log, spans, starts []string
			for n, want := range c.answers {
				if a = b.refund(patient, key, 1000); a.status != want || a.replayed {
					t.Fatalf("try %d is answered %d %s (replayed: %v), want %d", n+1, a.status, a.body, a.replayed, want)
				}
				log, spans, starts = append(log, "forgotten"), append(spans, fmt.Sprintf("attempt=1 status=%d", want)), append(starts, fmt.Sprintf("attempt=%d", n+1))
			}
			log[len(log)-1] = "created"
			if asked := b.gateway.asked(); asked != len(c.answers) {
				t.Errorf("the gateway was asked %d times, want %d", asked, len(c.answers))
			}
			if m := b.payout(a.id); m.Cents != 1000 {
				t.Errorf("it has paid %+v", m)
			}
			b.same(a, b.refund(patient, key, 1000))
			b.deliver(a.id)
			b.kept(1, 1, 1)
			b.published(map[string]int{"refund.requested": 1, "refund.succeeded": 1})
			lines := b.logged("idempotent request", append(log, "replayed")...)
			b.oneKey(lines, key)
			for i, l := range lines[:len(lines)-1] {
				if l.Attempt != i+1 {
					t.Errorf("line %d of the log says attempt %d", i+1, l.Attempt)
				}
			}
			b.counted(1, 1, 0)
			b.attempts(append(spans, "attempt=1 status=201")...)
			b.starts(append(starts, "attempt=")...)
		})
	}
}

// The same by a client that tries again by itself, and numbers its attempts.
//
// R34.
func TestRefunds_TheShopTriesAgainUnderOneKeyUntilTheGatewayAnswers(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	b.expect(hangsAfter, away, hangsBefore)
	a := b.refund(b.client("teashop", retry.Policy{}), "refund:ch_paid:1000:6f6c0001", 1000)
	b.is(a, 201, "")
	b.payout(a.id)
	b.kept(1, 0, 1)
	b.attempts("attempt=1 status=504", "attempt=2 status=503", "attempt=3 status=504", "attempt=4 status=201")
	b.oneKey(b.logged("idempotent request", "forgotten", "forgotten", "forgotten", "created"), "refund:ch_paid:1000:6f6c0001")
	b.starts("attempt=1", "attempt=2", "attempt=3", "attempt=4")
	parents := map[trace.SpanID]bool{}
	for _, span := range b.spans.Ended() {
		if span.SpanKind() == trace.SpanKindClient {
			parents[span.SpanContext().SpanID()] = true
		}
	}
	for _, span := range b.spans.Ended() {
		if span.SpanKind() == trace.SpanKindServer && !parents[span.Parent().SpanID()] {
			t.Error("a span of the service is not part of an attempt of the shop's")
		}
	}
}

// W13.
func TestRefunds_ADuplicateWebhookRefundSucceededIsOneLedgerEntry(t *testing.T) {
	t.Run("one after the other", func(t *testing.T) {
		b := setup(t)
		first := b.refund(b.shop, "refund:ch_paid:1000:6f6c0001", 1000)
		b.is(first, 201, "")
		for n := range 3 {
			if status := b.deliver(first.id); status != 200 {
				t.Errorf("delivery %d is answered %d", n+1, status)
			}
		}
		b.logged("webhook", "handled", "duplicate", "duplicate")
		b.settled(first.id)
	})
	t.Run("at once", func(t *testing.T) {
		b := setup(t)
		first := b.refund(b.shop, "refund:ch_paid:1000:6f6c0001", 1000)
		b.is(first, 201, "")
		const copies = 8
		payout, statuses, errs := b.payout(first.id), make([]int, copies), make([]error, copies)
		var all sync.WaitGroup
		for i := range copies {
			all.Go(func() { statuses[i], errs[i] = b.gateway.notify(t.Context(), b.hook(), payout) })
		}
		all.Wait()
		done := 0
		for i, status := range statuses {
			switch status {
			case 200:
				done++
			case 503: // in progress: the gateway sends it again
			default:
				t.Errorf("a copy is answered %d: %v", status, errs[i])
			}
		}
		if done == 0 {
			t.Error("no copy is answered 200")
		}
		if status := b.deliver(first.id); status != 200 {
			t.Errorf("a copy that comes again is answered %d", status)
		}
		b.settled(first.id)
	})
}

// settled checks that a refund, the only one, has arrived: once, wherever one looks.
func (b *bundle) settled(id string) {
	b.Helper()
	b.kept(1, 1, 1)
	if n := b.count("select count(*) from refunds where id = $1 and state = 'succeeded'", id); n != 1 {
		b.Errorf("the refund has not arrived")
	}
	if n := b.count("select count(*) from ledger where reference = $1 and cents = -1000", id); n != 1 {
		b.Errorf("the ledger has %d entries of it, want 1", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled' and event_id = $1", "evt_"+b.payout(id).ID); n != 1 {
		b.Errorf("the inbox has %d rows of the webhook, want 1", n)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		b.Errorf("there are %d dead letters", n)
	}
	b.published(map[string]int{"refund.requested": 1, "refund.succeeded": 1})
}
