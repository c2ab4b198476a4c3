package inbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A claim that Postgres carries out and whose answer is lost has leased events to a worker that does not know of them. Their
// keys do not wait for a whole lease: the node knows under which token it asked.
func TestClaimUnanswered_WhatAClaimWithoutAnAnswerLeasedIsTakenOverByTheNext(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	deaf, pool := b.struckAt("inbox.claim", func(_ context.Context, conn net.Conn, p []byte) (int, error) {
		if n, err := conn.Read(p); err != nil { // Postgres has carried the claim out.
			return n, err
		}
		_ = conn.Close()
		return 0, io.ErrUnexpectedEOF
	})
	in, other := b.inboxOn(pool), b.inbox()
	for _, i := range []*Inbox{in, other} {
		i.Handle("order.placed", effectOf)
		i.registry.start()
	}
	for id, key := range map[string]string{"1": "a", "3": "b"} {
		b.store(in, event(id, key))
	}
	b.store(in, event("2", "a"))

	deaf.armed.Store(true)
	if got, err := in.claims.claim(b.Context(), 8); err == nil {
		t.Fatalf("the claim had an answer: %v", got)
	}
	if n := b.count("select count(*) from holdfast.stored where lease_until > now()"); n != 2 {
		t.Fatalf("Postgres leased %d events, want 2: the test tests nothing", n)
	}
	if got, err := other.claims.claim(b.Context(), 8); err != nil || len(got) != 0 {
		t.Errorf("another node claimed %d events under a lease of ours: %v", len(got), err)
	}
	got, err := in.claims.claim(b.Context(), 8)
	if err != nil {
		t.Fatal(err)
	}
	var what []string
	for _, s := range got {
		what = append(what, fmt.Sprint(s.e.ID, " attempt ", s.attempts))
	}
	slices.Sort(what)
	if want := "1 attempt 1,3 attempt 1"; strings.Join(what, ",") != want {
		t.Errorf("the next claim has %q, want %q", what, want)
	}
	if again, err := in.claims.claim(b.Context(), 8); err != nil || len(again) != 0 {
		t.Errorf("a third claim took %d events from the second: %v", len(again), err)
	}
	for _, s := range got {
		if err := in.backlog.work(b.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"1", "2", "3"} {
		b.awaitOutcome(id, Handled)
	}
}

// Nor does a replay, which has entered before such an event.
func TestClaimUnanswered_AReplayDoesNotWaitForTheLeaseOfAClaimWithoutAnAnswer(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	b.store(in, event("2", "k"))
	got, err := in.claims.claim(b.Context(), 1)
	if err != nil || len(got) != 1 {
		t.Fatalf("claimed %d: %v", len(got), err)
	}
	b.enterBefore("1", "2")
	if again, err := in.claims.claim(b.Context(), 8); err != nil || len(again) != 0 {
		t.Fatalf("%d events were claimed while the one behind is in hand: %v", len(again), err)
	}
	in.claims.unanswered.add(got[0].token, time.Now().Add(time.Minute), io.ErrUnexpectedEOF) // its worker never heard of it
	again, err := in.claims.claim(b.Context(), 8)
	if err != nil || len(again) != 1 || again[0].e.ID != "1" {
		t.Errorf("the next claim has %d events, want the replay: %v", len(again), err)
	}
}

func TestClaimUnanswered_ClaimsWithoutAnAnswerAreForgottenInTime(t *testing.T) {
	t.Parallel()
	var u unanswered
	now := time.Now()
	u.add("unsent", now.Add(time.Minute), fmt.Errorf("claim: %w", &pgconn.ConnectError{}))
	u.add("short", now.Add(time.Second), io.ErrUnexpectedEOF)
	u.add("long", now.Add(time.Minute), io.ErrUnexpectedEOF)
	if got := u.tokens(now); strings.Join(got, ",") != "short,long" {
		t.Errorf("%q", got)
	}
	if got := u.tokens(now.Add(2 * time.Second)); strings.Join(got, ",") != "long" {
		t.Errorf("after two seconds: %q", got)
	}
	for range 2 * maxUnanswered {
		u.add("more", now.Add(time.Hour), io.ErrUnexpectedEOF)
	}
	if got := u.tokens(now.Add(2 * time.Minute)); len(got) != maxUnanswered-1 {
		t.Errorf("%d are kept, want %d beside the one that is over", len(got), maxUnanswered-1)
	}
}
