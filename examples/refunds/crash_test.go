package main

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// dying is a node of the service, in a process of its own, that ends when the gateway has paid.
func (b *bundle) dying() *node {
	b.Helper()
	n, err := startNode(self(), b.db.DSN, "public", "holdfast", b.gateway.http.URL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { n.wait() })
	return n
}

// R40.
func TestCrash_AProcessThatEndsBetweenPayoutAndRecordPaysOnce(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	n := b.dying()
	const key = "refund:ch_paid:1000:6f6c0001"
	a := b.refund(b.client("teashop", retry.Policy{}, n.address), key, 1000)
	b.is(a, 201, "")
	if status := n.wait(); status != exitPaid {
		t.Fatalf("the node ends with status %d, want %d", status, exitPaid)
	}
	if asked := b.gateway.asked(); asked != 2 {
		t.Errorf("the gateway was asked %d times, want twice: by each node once", asked)
	}
	b.deliver(a.id)
	b.settled(a.id)
	b.same(a, b.refund(b.shop, key, 1000))
}

// R40.
func TestCrash_WhatNoClientComesBackForTheCompleterFinishes(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	n := b.dying()
	const key = "refund:ch_paid:1000:6f6c0001"
	alone := newClient(b.shop.token, b.tracer, once, n.address)
	defer alone.close()
	if a, err := alone.post(t.Context(), "/refunds", key, refund{Charge: b.charge, Cents: 1000}); err == nil {
		t.Fatalf("a node that ended has answered %d", a.status)
	}
	if status := n.wait(); status != exitPaid {
		t.Fatalf("the node ends with status %d, want %d", status, exitPaid)
	}
	if n := b.count("select count(*) from refunds where receipt is null"); n != 1 {
		t.Fatalf("%d refunds are left half done, want 1", n)
	}
	if err := finish(t.Context(), b.service, "select count(*) = 1 from refunds where receipt is not null"); err != nil {
		t.Fatal(err)
	}
	a := b.refund(b.shop, key, 1000) // its answer is there for a client that still asks
	b.is(a, 201, "")
	if !a.replayed {
		t.Error("it was carried out once more")
	}
	b.deliver(a.id)
	b.settled(a.id)
}

// failing makes the service fail once at a place, as if its process ended: what its handler was about to do is not done.
func (b *bundle) failing(at place) {
	var once sync.Once
	b.service.at = func(where place, _ string) {
		if where == at {
			once.Do(func() { panic(http.ErrAbortHandler) })
		}
	}
}

// R40.
func TestCrash_WhereverATryFailsTheNextOneGoesOnAfterWhatIsDone(t *testing.T) {
	for _, c := range []struct {
		at        place
		troubles  []trouble
		asked     int // calls of the gateway
		want      int
		published map[string]int
	}{
		{onArrival, nil, 1, 201, map[string]int{"refund.requested": 1}},
		{whenPaid, nil, 2, 201, map[string]int{"refund.requested": 1}},
		{whenRecorded, nil, 2, 201, map[string]int{"refund.requested": 1}},
		{whenDeclined, []trouble{declines}, 2, 402, map[string]int{"refund.declined": 1}},
	} {
		t.Run(string(c.at), func(t *testing.T) {
			b := setup(t)
			b.expect(c.troubles...)
			b.failing(c.at)
			a := b.refund(b.shop, "refund:ch_paid:1000:6f6c0001", 1000)
			b.is(a, c.want, "")
			b.attempts("attempt=1 status=", fmt.Sprintf("attempt=2 status=%d", c.want))
			b.starts("attempt=1", "attempt=2")
			if n := b.gateway.asked(); n != c.asked {
				t.Errorf("the gateway was asked %d times, want %d", n, c.asked)
			}
			b.kept(1, 0, len(b.gateway.of(a.id)))
			if paid := len(b.gateway.of(a.id)); (paid == 1) != (c.want == 201) {
				t.Errorf("it has paid %d times", paid)
			}
			b.published(c.published)
		})
	}
}

// R40.
func TestCrash_AnUntouchedRequestIsCompletedForTheAccountThatAsked(t *testing.T) {
	b := setup(t)
	b.failing(onArrival)
	if a, err := b.client("teashop", once).post(t.Context(), "/refunds", "refund:ch_paid:1000:6f6c0001", refund{Charge: b.charge, Cents: 1000}); err == nil {
		t.Fatalf("it is answered %d", a.status)
	}
	b.kept(0, 0, 0)
	if err := finish(t.Context(), b.service, "select count(*) = 1 from refunds where receipt is not null"); err != nil {
		t.Fatal(err)
	}
	b.kept(1, 0, 1)
}
