package idempotency

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// A handler answers that nothing was done while a step of its request is just being committed. The key must not be forgotten:
// the next request would do the step again.
func TestRelease_AReleaseSeesTheStepThatItHadToWaitFor(t *testing.T) {
	b := setup(t)
	g := b.guard()
	k := store.Key{Scope: "s", Operation: "o", Key: "k"}
	c, err := g.pg().Claim(t.Context(), k, versioned(versionForm, make([]byte, 32)), time.Hour, time.Hour)
	if err != nil || !c.Mine {
		t.Fatalf("%+v, %v", c, err)
	}
	step, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, step, g.sql.stepLock, k.Scope, k.Operation, k.Key, c.Fence)
	released := make(chan error, 1)
	go func() { released <- g.pg().release(t.Context(), k, c.Fence, true, 0) }()
	wait.Until(b, "the release waits", func() bool {
		return pgtest.Count(t, b.db, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%idempotency.release%'") == 1
	})
	pgtest.Exec(t, step, "insert into holdfast.idempotency_step (run, name, result) select run, 'charge', '1' from holdfast.idempotency")
	if err := step.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency k join holdfast.idempotency_step s on s.run = k.run where k.state = 'pending' and k.lease_until = '-infinity'"); n != 1 {
		t.Errorf("%d rows are left with the step: what it did is forgotten", n)
	}

	// Without a step it goes.
	other := store.Key{Scope: "s", Operation: "o", Key: "other"}
	if c, err = g.pg().Claim(t.Context(), other, versioned(versionForm, make([]byte, 32)), time.Hour, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := g.pg().release(t.Context(), other, c.Fence, true, 0); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where key = 'other'"); n != 0 {
		t.Error("a key without steps was not forgotten")
	}
}
