package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// R6.
func TestRoutes_AnotherAmountUnderTheSameKeyIsAPayloadMismatch(t *testing.T) {
	b := setup(t)
	const key = "refund:ch_paid:1000:6f6c0001"
	first := b.refund(b.shop, key, 1000)
	b.is(first, 201, "")
	b.is(b.refund(b.shop, key, 2000), 409, "idempotency.payload_mismatch")
	b.same(first, b.refund(b.shop, key, 1000))
	b.kept(1, 0, 1)
	b.oneKey(b.logged("idempotent request", "created", "conflict", "replayed"), key)
	b.counted(1, 1, 1)
	b.attempts("attempt=1 status=201", "attempt=1 status=409", "attempt=1 status=201")
}

// R1.
func TestRoutes_EveryRouteThatMovesMoneyNeedsAKeyOfItsForm(t *testing.T) {
	b := setup(t)
	for path, body := range map[string]any{
		"/payments": payment{Cents: 1000}, "/refunds": refund{Charge: b.charge, Cents: 1000}, "/payments/ch_paid/void": nil,
	} {
		b.is(b.post(b.shop, path, "", body), 400, "idempotency.key_missing")
		b.is(b.post(b.shop, path, "another:6f6c0001", body), 400, "idempotency.key_invalid")
	}
	b.kept(0, 0, 0)
	if n := b.gateway.asked(); n != 0 {
		t.Errorf("the gateway was asked %d times", n)
	}
}

// R11.
func TestRoutes_FiftyCopiesAtOnceAreOnePayout(t *testing.T) {
	b := setup(t)
	answers, errs := make([]answer, copies), make([]error, copies)
	var all sync.WaitGroup
	for i := range copies {
		all.Go(func() {
			answers[i], errs[i] = b.shop.post(t.Context(), "/refunds", "refund:ch_paid:1000:6f6c0001", refund{Charge: b.charge, Cents: 1000})
		})
	}
	all.Wait()
	stored := 0
	for i, a := range answers {
		if errs[i] != nil || a.status != 201 || a.body != answers[0].body {
			t.Fatalf("copy %d is answered %d %s, %v; the first %s", i, a.status, a.body, errs[i], answers[0].body)
		}
		if !a.replayed {
			stored++
		}
	}
	if stored != 1 {
		t.Errorf("%d copies were carried out, want 1", stored)
	}
	if n := b.gateway.asked(); n != 1 {
		t.Errorf("the gateway was asked %d times, want once", n)
	}
	b.payout(answers[0].id)
	b.kept(1, 0, 1)
	b.published(map[string]int{"refund.requested": 1})
	b.counted(1, copies-1, 0)
}

// R13.
func TestRoutes_RefundsAtOnceAreNeverMoreThanWasPaid(t *testing.T) {
	b := setup(t)
	answers, errs := make([]answer, 4), make([]error, 4)
	// All of them are let go at one moment: each waits for a lock on the payment.
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "select from payments where id = $1 for update", b.charge)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			answers[i], errs[i] = b.shop.post(t.Context(), "/refunds", fmt.Sprintf("refund:ch_paid:6000:6f6c000%d", i), refund{Charge: b.charge, Cents: 6000})
		})
	}
	if err := stories.Await(t.Context(), so(b.db.Pool, "select count(*) = $1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'", len(answers))); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	statuses := map[int]int{}
	for i, a := range answers {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		statuses[a.status]++
	}
	if statuses[201] != 1 || statuses[422] != 3 {
		t.Errorf("they are answered %v, want 201 once and 422 three times", statuses)
	}
	b.kept(1, 0, 1)
}

// R14.
func TestRoutes_AnAccountHasItsKeysForItself(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "insert into payments (id, account, cents, state) values ('ch_other', 'bookshop', 10000, 'captured')")
	const key = "refund:6f6c0001"
	first := b.refund(b.shop, key, 1000)
	b.is(first, 201, "")
	other := b.client("bookshop", once)
	theirs := b.post(other, "/refunds", key, refund{Charge: "ch_other", Cents: 1000})
	b.is(theirs, 201, "")
	if theirs.replayed || theirs.id == first.id {
		t.Errorf("another account's key brings %s", theirs.body)
	}
	b.is(b.refund(other, "refund:6f6c0002", 1000), 404, "VALIDATION.charge") // what is another's is not there
	b.kept(2, 0, 2)
}

// R15.
func TestRoutes_ARevokedTokenDoesNotGetTheStoredAnswer(t *testing.T) {
	b := setup(t)
	const key = "refund:ch_paid:1000:6f6c0001"
	b.is(b.refund(b.shop, key, 1000), 201, "")
	b.is(b.refund(b.client("lapsed", once), key, 1000), 401, "AUTH.token")
	b.counted(1, 0, 0)
}

// R22.
func TestRoutes_ARefundThatTheGatewayDeclinesStaysSo(t *testing.T) {
	b := setup(t)
	b.expect(declines)
	const key = "refund:ch_paid:10000:6f6c0001"
	first := b.refund(b.shop, key, 10000)
	b.is(first, 402, "")
	b.same(first, b.refund(b.shop, key, 10000))
	b.kept(1, 0, 0)
	if n := b.count("select count(*) from refunds where state = 'declined'"); n != 1 {
		t.Errorf("%d refunds are declined, want 1", n)
	}
	b.published(map[string]int{"refund.declined": 1})
	b.is(b.refund(b.shop, "refund:ch_paid:10000:6f6c0002", 10000), 201, "") // what was declined is left to be refunded
}

// R22.
func TestRoutes_AVoidThatTheGatewayDeclinesLeavesThePayment(t *testing.T) {
	b := setup(t)
	b.expect(declines)
	first := b.post(b.shop, "/payments/ch_paid/void", "void:6f6c0001", nil)
	b.is(first, 402, "")
	b.same(first, b.post(b.shop, "/payments/ch_paid/void", "void:6f6c0001", nil))
	b.published(map[string]int{"payment.void_declined": 1})
	b.kept(0, 0, 0)
	b.is(b.refund(b.shop, "refund:ch_paid:1000:6f6c0001", 1000), 201, "") // nothing of it is on hold
}

// R17.
func TestRoutes_ToCreateAndToReverseAreIdempotentAlike(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	b.expect(hangsAfter)
	paid := b.post(b.shop, "/payments", "payment:6f6c0001", payment{Cents: 7000})
	b.is(paid, 201, "")
	b.same(paid, b.post(b.shop, "/payments", "payment:6f6c0001", payment{Cents: 7000}))
	b.expect(hangsAfter)
	voided := b.post(b.shop, "/payments/"+paid.id+"/void", "void:6f6c0001", nil)
	b.is(voided, 201, "")
	b.same(voided, b.post(b.shop, "/payments/"+paid.id+"/void", "void:6f6c0001", nil))
	b.is(b.post(b.shop, "/payments/"+paid.id+"/void", "void:6f6c0002", nil), 409, "CONFLICT.payment_state")
	b.is(b.post(b.shop, "/refunds", "refund:6f6c0001", refund{Charge: paid.id, Cents: 1}), 409, "CONFLICT.payment_state")
	var kinds []string
	for _, m := range b.gateway.of(paid.id) {
		kinds = append(kinds, m.Kind)
	}
	if fmt.Sprint(kinds) != "[charges voids]" {
		t.Errorf("the gateway has made %v", kinds)
	}
	if n := b.count("select count(*) filter (where cents = 7000) * 10 + count(*) filter (where cents = -7000) from ledger"); n != 11 {
		t.Errorf("the ledger has other than two entries that cancel each other: %d", n)
	}
	b.published(map[string]int{"payment.captured": 1, "payment.voided": 1})
}

// W19.
func TestRoutes_AWebhookBeforeThePayoutIsRecordedIsNotLost(t *testing.T) {
	b := setup(t)
	early := make(chan int, 1)
	b.service.at = func(where place, reference string) {
		if where != whenPaid {
			return
		}
		status, err := b.gateway.notify(t.Context(), b.hook(), b.gateway.of(reference)[0])
		if err != nil {
			t.Error(err)
		}
		early <- status
	}
	a := b.refund(b.shop, "refund:ch_paid:1000:6f6c0001", 1000)
	b.is(a, 201, "")
	if status := <-early; status != http.StatusOK {
		t.Errorf("the webhook is answered %d", status)
	}
	b.settled(a.id)
}

// W21.
func TestRoutes_AWebhookOfAnUncommittedRefundIsKeptUntilItIsThere(t *testing.T) {
	b := setup(t)
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "insert into refunds (id, charge, cents, state) values ('rf_late', 'ch_paid', 1000, 'pending')")
	status, err := b.gateway.notify(t.Context(), b.hook(), movement{ID: "payouts_9", Kind: "payouts", Reference: "rf_late", Cents: 1000})
	if err != nil || status != http.StatusAccepted {
		t.Fatalf("the webhook is answered %d, %v, want 202", status, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stories.Work(t.Context(), b.service.in, b.db.Pool, ""); err != nil {
		t.Fatal(err)
	}
	b.logged("webhook", "retrying")
	if n := b.count("select count(*) from ledger where reference = 'rf_late'") + 10*b.count("select count(*) from refunds where state = 'succeeded'"); n != 11 {
		t.Errorf("there are other than one entry and one refund that has arrived: %d", n)
	}
}

// Document 004: RATE_LIMIT.exceeded is to be waited for, as long as Retry-After says.
func TestRoutes_ALimitOfTheGatewayIsWaitedFor(t *testing.T) {
	b := setup(t)
	b.expect(limits)
	const key = "refund:ch_paid:1000:6f6c0001"
	b.is(b.refund(b.client("teashop", once), key, 1000), 429, "RATE_LIMIT.exceeded") // nothing is kept of it
	b.kept(1, 0, 0)
	b.expect(limits)
	begun := time.Now()
	a := b.refund(b.shop, key, 1000)
	b.is(a, 201, "")
	if took := time.Since(begun); took < time.Second || a.attempts != 2 {
		t.Errorf("the shop made %d attempts in %s, want 2 in more than the second that the gateway asked for", a.attempts, took)
	}
	b.payout(a.id)
	b.kept(1, 0, 1)
	b.attempts("attempt=1 status=429", "attempt=1 status=429", "attempt=2 status=201")
}

// Document 004: of PROVIDER.duplicate the existing result is shown.
func TestRoutes_WhatTheGatewayHasDoneAlreadyIsShown(t *testing.T) {
	b := setup(t)
	b.expect(hangsAfter)
	const key = "refund:ch_paid:1000:6f6c0001"
	patient := b.client("teashop", once)
	b.is(b.refund(patient, key, 1000), 504, "DEPENDENCY.timeout")
	a := b.refund(patient, key, 1000)
	b.is(a, 201, "")
	if b.gateway.repeats != 1 {
		t.Errorf("the gateway has said %d times that it was done already, want once", b.gateway.repeats)
	}
	receipt := b.payout(a.id).ID
	if n := b.count("select count(*) from refunds where id = $1 and receipt = $2", a.id, receipt); n != 1 {
		t.Errorf("the refund does not have the receipt %s of the first call", receipt)
	}
	b.kept(1, 0, 1)
	b.same(a, b.refund(patient, key, 1000))
}
