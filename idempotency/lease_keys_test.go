package idempotency

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What becomes of a key under a lease once its handler has returned, or never does.

// R20.
func TestLeaseKeys_WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	status, stepped := 0, false
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		if stepped {
			if _, err := Step(r.Context(), "one", func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, nil }); err != nil {
				t.Error(err)
			}
		}
		if status == http.StatusUnprocessableEntity {
			DoNotStore(r.Context())
		}
		w.WriteHeader(status)
	}, Route{Lease: aLease})
	for _, stepped = range []bool{false, true} {
		for _, status = range []int{401, 403, 408, 422, 425, 429, 500, 503} {
			key := fmt.Sprint(status, "-", stepped)
			for range 2 {
				if w := b.send(h, sent{key: key}); w.Code != status || w.Header().Get("Idempotency-Status") != "" {
					t.Errorf("%s: got %d %v", key, w.Code, w.Header())
				}
			}
			// Without a step and with an answer that blames the request nothing was done: the key is free for another one.
			w := b.send(h, sent{key: key, body: `{"amount": 20}`})
			if free := !stepped && status < 500; free != (w.Code == status) || !free && w.Code != 409 {
				t.Errorf("%s: another request got %d", key, w.Code)
			}
		}
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state <> 'pending' or lease_until > clock_timestamp()"); n != 0 {
		t.Errorf("%d keys are in use", n)
	}
	status = 402
	b.is(b.send(h, sent{key: "final"}), 402, "")
	runs := b.runs.Load()
	b.is(b.send(h, sent{key: "final"}), 402, "")
	if b.runs.Load() != runs {
		t.Error("an answer of 402 was made again")
	}
}

func TestLeaseKeys_AClientThatGoesAwayUnderALeaseFindsItsAnswerLater(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.at = func(place string, r *http.Request) error {
		if place == "end" {
			cancel()
			<-r.Context().Done()
		}
		return nil
	}
	h := b.sell(b.guard())
	b.is(b.send(h, sent{key: "k", ctx: ctx}), 201, "")
	b.at = nil
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// R23.
func TestLeaseKeys_OnlyAnUnfinishedRequestWithStepsOutlivesItsTTL(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	g := b.guard(func(c *Config) { c.KeepExpired = time.Hour })
	o := Route{Lease: aLease, TTL: time.Hour}
	b.abandon(g, "begin", sent{key: "bare"}, o)
	b.abandon(g, "before the call", sent{key: "stepped"}, o)
	pgtest.Exec(t, b.db, "update holdfast.idempotency set expires_at = expires_at - interval '2 hours', lease_until = lease_until - interval '2 hours'")
	if n, err := g.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v, want the one without steps", n, err)
	}
	h := b.sell(g, o)
	b.is(b.send(h, sent{key: "bare", body: `{"amount": 20}`}), 201, "") // It is a new request.
	b.is(b.send(h, sent{key: "stepped", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	b.is(b.send(h, sent{key: "stepped"}), 201, "")
	b.sold(2)

	b.abandon(g, "before the call", sent{key: "third"}, o)
	b.expire()
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step"); n != 1 {
		t.Fatalf("%d steps", n)
	}
	if n, err := g.RunOnce(t.Context()); n != 3 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step"); n != 0 {
		t.Errorf("%d steps have no request", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired where status is null"); n != 2 {
		t.Errorf("%d unfinished ones are kept for audits", n)
	}
}

// R24.
func TestLeaseKeys_AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	g := b.guard(func(c *Config) { c.KeepExpired = time.Hour })
	b.abandon(g, "before the call", sent{key: "k"}, Route{Lease: aLease, Operation: "sell", Complete: asItIs})
	b.expire()
	b.lapse()
	h := b.sell(b.guard(func(c *Config) { c.KeepExpired = time.Hour }), Route{Lease: aLease, Operation: "sell"})
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if n := pgtest.Count(t, b.db, "select count(*) from charge"); n != 2 {
		t.Errorf("%d charges: the old request's step was taken for the new one's", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step") + pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request"); n != 0 {
		t.Errorf("%d rows of the old request are left", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired"); n != 1 {
		t.Errorf("%d are kept for audits", n)
	}
	if o := b.observed[len(b.observed)-1]; !o.Expired || o.Attempt != 1 {
		t.Errorf("reported %+v", o)
	}
}

func TestLeaseKeys_ARouteThatChangesItsModeNeverRunsARequestTwice(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	inTx := b.service(b.guard(), b.charge, Route{Operation: "sell"})
	leased := b.sell(b.guard(), Route{Lease: 10 * time.Second, Operation: "sell"})

	// A transaction meets a lease: while it lives, and after it has run out.
	b.at = func(place string, r *http.Request) error {
		if place == "after the call" {
			b.is(b.send(inTx, sent{key: "k"}), 409, codeInProgress)
			b.lapse()
			b.is(b.send(inTx, sent{key: "k"}), 409, codeInProgress)
			b.is(b.send(inTx, sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
		}
		return nil
	}
	first := b.send(leased, sent{key: "k"})
	b.is(first, 201, "")
	b.same(first, b.send(inTx, sent{key: "k"}))
	b.sold(1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("a handler in transaction mode ran beside the lease: %d runs", n)
	}

	// A lease meets a transaction that runs: its lock is what it sees.
	busy := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.is(b.send(leased, sent{key: "k2"}), 409, codeInProgress)
		b.charge(w, r)
	}, Route{Operation: "sell"})
	second := b.send(busy, sent{key: "k2"})
	b.is(second, 201, "")
	b.same(second, b.send(leased, sent{key: "k2"}))
	b.kept(2, 2, 2)

	// Should a claim come beside the lock for all that, the primary key undoes the transaction.
	beside := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		pgtest.Exec(t, b.db, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
			select scope, operation, 'k3', fingerprint, fingerprint_version, 'pending', gen_random_uuid(), 7, 7, clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 day'
			from holdfast.idempotency where key = 'k2'`)
		b.charge(w, r)
	}, Route{Operation: "sell"})
	b.is(b.send(beside, sent{key: "k3"}), 409, codeInProgress)
	b.kept(2, 2, 3)
}

func TestLeaseKeys_ARequestWithoutAKeyRunsUnderNoLease(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	h := b.sell(b.guard(), Route{Lease: aLease, Optional: true})
	b.is(b.send(h, sent{}), 201, "")
	b.is(b.send(h, sent{}), 201, "")
	b.kept(2, 2, 0)
	if got := b.results(); !slices.Equal(got, []Result{Bypassed, Bypassed}) {
		t.Errorf("reported %v", got)
	}
}

func TestLeaseKeys_DecisionsAboutLeases(t *testing.T) {
	mine, other := make([]byte, 32), append(make([]byte, 31), 1)
	row := func(change func(s *stored)) *stored {
		s := &stored{Fingerprint: mine, Version: versionForm, State: statePending}
		change(s)
		return s
	}
	for name, c := range map[string]struct {
		row       *stored
		want      found
		claimable bool
	}{
		"nothing":                          {nil, foundNothing, true},
		"one that expired":                 {row(func(s *stored) { s.Expired, s.Fingerprint = true, other }), foundNothing, true},
		"one under a lease":                {row(func(s *stored) { s.Live = true }), foundPending, false},
		"one whose lease ran out":          {row(func(s *stored) {}), foundPending, true},
		"another's under a lease":          {row(func(s *stored) { s.Live, s.Fingerprint = true, other }), foundOther, false},
		"another's whose lease ran out":    {row(func(s *stored) { s.Fingerprint = other }), foundOther, false},
		"a large one":                      {row(func(s *stored) { s.Version = versionBytes }), foundOther, false},
		"one of another version":           {row(func(s *stored) { s.Version = versionBytes + 1 }), foundUnusable, false},
		"one in a state of another build":  {row(func(s *stored) { s.State = "resting" }), foundUnusable, false},
		"one that is answered":             {row(func(s *stored) { s.State, s.Answer.Status, s.Answer.BodyHash = stateComplete, 201, hashOf(nil) }), foundAnswer, false},
		"one whose answer does not add up": {row(func(s *stored) { s.State, s.Answer.Status = stateComplete, 201 }), foundUnusable, false},
	} {
		asked := versioned(versionForm, mine)
		if got := foundOf(c.row, asked); got != c.want || claimable(c.row, asked) != c.claimable {
			t.Errorf("%s: got %v and %v, want %v and %v", name, got, claimable(c.row, asked), c.want, c.claimable)
		}
	}
	if got := foundOf(row(func(*stored) {}), versioned(versionBytes, mine)); got != foundUnusable {
		t.Errorf("a large document whose form an earlier build may have stored: got %v", got)
	}
}
