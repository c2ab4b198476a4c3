package idempotency

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// expire makes every key's time run out, a moment ago.
func (b *bundle) expire() {
	b.Helper()
	pgtest.Exec(b, b.db, "update holdfast.idempotency set expires_at = clock_timestamp()")
}

// R23, R24, R26.
func TestExpiry_AnExpiredKeyIsANewRequestWhoeverCleansUp(t *testing.T) {
	b := setup(t)
	g := b.guard(func(c *Config) { c.ShowExpiry = true })
	h := b.service(g, b.charge, Route{TTL: 30 * 24 * time.Hour})
	first := b.send(h, sent{key: "k"})
	b.is(first, 201, "")
	at, err := http.ParseTime(first.Header().Get("Idempotency-Key-Expires"))
	if left := time.Until(at); err != nil || left < 29*24*time.Hour || left > 31*24*time.Hour {
		t.Errorf("R39: it expires at %v, %v", at, err)
	}
	b.expire() // and nobody cleans up
	second := b.send(h, sent{key: "k", body: `{"amount": 20}`})
	b.is(second, 201, "")
	if second.Body.String() == first.Body.String() || second.Header().Get("Idempotency-Status") != "stored" {
		t.Errorf("got %s, %v", second.Body, second.Header())
	}
	b.same(second, b.send(h, sent{key: "k", body: `{"amount": 20}`}))
	b.is(b.send(h, sent{key: "k"}), 409, codePayloadMismatch)
	b.kept(2, 2, 1)
	if !b.observed[1].Expired || b.observed[0].Expired {
		t.Error("it was not said that the key had expired")
	}
}

// R23.
func TestExpiry_ATimeToLiveIsNotExtendedByReplays(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	before := b.expiry()
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if after := b.expiry(); !after.Equal(before) {
		t.Errorf("it expires at %v, and at %v after a replay", before, after)
	}
}

func (b *bundle) expiry() (at time.Time) {
	b.Helper()
	if err := b.db.QueryRow(b.Context(), "select expires_at from holdfast.idempotency").Scan(&at); err != nil {
		b.Fatal(err)
	}
	return at
}

// R23. A key that is in use cannot expire: another request would begin beside it.
func TestExpiry_AKeyDoesNotExpireWhileItsLeaseIsRenewed(t *testing.T) {
	b := setup(t)
	keys, k := b.guard().pg(), store.Key{Scope: "s", Operation: "o", Key: "k"}
	c, err := keys.Claim(t.Context(), k, []byte{1, 2}, time.Second, time.Second)
	if err != nil || !c.Mine {
		t.Fatalf("it was claimed: %t, %v", c.Mine, err)
	}
	if mine, err := keys.Renew(t.Context(), k, c.Fence, time.Hour); err != nil || !mine {
		t.Fatalf("it is ours: %t, %v", mine, err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where lease_until > clock_timestamp() + interval '30 minutes' and expires_at >= lease_until"); n != 1 {
		t.Error("it expires before its lease ends")
	}
}

// R40. Whoever looks for abandoned requests may find one that the client repeats before it is resumed.
func TestExpiry_ARequestWhoseLeaseRunsIsNotResumed(t *testing.T) {
	b := openTill(t)
	g := b.guard(soon(10))
	b.abandonAt(g, "after the call", completed())
	pgtest.Exec(t, b.db, "update holdfast.idempotency_request set due_at = clock_timestamp()")
	pgtest.Exec(t, b.db, "update holdfast.idempotency set lease_until = clock_timestamp() + interval '1 hour'")
	resume := func() int64 {
		return pgtest.Exec(t, b.db, g.sql.resume, pgtest.Count(t, b.db, "select run from holdfast.idempotency_request"), "00000000-0000-4000-8000-000000000000", 1, 1, 1)
	}
	if n := resume(); n != 0 {
		t.Error("it was resumed beside the one that runs")
	}
	b.lapse()
	if n := resume(); n != 1 {
		t.Errorf("%d requests were resumed when the lease had ended", n)
	}
}

// R23.
func TestExpiry_ManyRequestsOnAnExpiredKeyRunOnce(t *testing.T) {
	b := setup(t)
	g := b.guard()
	h := b.service(g, b.charge, Route{Wait: time.Minute})
	for range 5 {
		b.is(b.send(h, sent{key: "k"}), 201, "")
		b.runs.Store(0)
		b.expire()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { b.is(b.send(h, sent{key: "k"}), 201, "") })
		}
		wg.Go(func() {
			if _, err := g.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if n := b.runs.Load(); n != 1 {
			t.Fatalf("the handler ran %d times", n)
		}
	}
}

// R25.
func TestExpiry_CleanersOnManyNodesRemoveWhatIsExpiredAndNothingElse(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	const fill = `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, owner, expires_at)
		select 'principal:a', 'POST /charges', $1 || n, '', 1, 'complete', 201, '{}', '', '', gen_random_uuid(), clock_timestamp() + $2::interval from generate_series(1, $3) n`
	pgtest.Exec(t, b.db, fill, "old", "-1 hour", 10_000)
	pgtest.Exec(t, b.db, fill, "live", "1 hour", 500)
	cleaned := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		g := b.guard(func(c *Config) {
			c.CleanupBatch = 300
			c.Observer.OnCleaned = func(keys int, took time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				cleaned += keys
			}
		})
		wg.Go(func() {
			if _, err := g.RunOnce(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// A cleaner that met only rows in others' hands has ended early; the next turn finds the rest.
	if _, err := b.guard().RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where key like 'old%'"); n != 0 {
		t.Errorf("%d expired keys are left", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency"); n != 500 || cleaned > 10_000 {
		t.Errorf("%d keys are left, %d were removed", n, cleaned)
	}
}

// R25.
func TestExpiry_WhatIsExpiredCanBeKeptForAudits(t *testing.T) {
	b := setup(t)
	g := b.guard(func(c *Config) { c.KeepExpired = time.Hour })
	h := b.service(g, b.charge)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.expire()
	b.is(b.send(h, sent{key: "k"}), 201, "") // takes the old one's place
	b.expire()
	if n, err := g.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired where key = 'k' and status = 201 and result_ref like '/charges/%'"); n != 2 {
		t.Errorf("%d are kept", n)
	}
	pgtest.Exec(t, b.db, "update holdfast.idempotency_expired set keep_until = clock_timestamp()")
	if _, err := g.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired"); n != 0 {
		t.Errorf("%d are kept for ever", n)
	}
}

// R25.
func TestExpiry_RunCleansUntilItHasToStop(t *testing.T) {
	b := setup(t)
	g := b.guard(func(c *Config) { c.CleanupEvery = 5 * time.Millisecond })
	h := b.service(g, b.charge)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.expire()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	wait.Until(b, "the key is gone", func() bool { return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency") == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestExpiry_EveryStatementIsUnderstoodByPostgres(t *testing.T) {
	b := setup(t)
	q := newStatements("holdfast")
	for name, sql := range map[string]string{"lookup": q.lookup, "open": q.open, "open_keyless": q.openKeyless, "store": q.store, "expire": q.expire, "clean": q.clean, "clean_expired": q.cleanExpired,
		"claim": q.claim, "renew": q.renew, "finish": q.finish, "release_lock": q.releaseLock, "release": q.release, "step_open": q.stepOpen, "step_lock": q.stepLock, "step_look": q.stepLook, "step_done": q.stepDone,
		"due": q.due, "resume": q.resume, "postpone": q.postpone, "abandon": q.abandon} {
		conn, err := b.db.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Conn().Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		conn.Release()
	}
}
