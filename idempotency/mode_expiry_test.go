package idempotency

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// R24.
func TestModeExpiry_ARouteThatGaveUpItsLeaseLeavesNothingOfWhatExpires(t *testing.T) {
	b := setup(t)
	g := b.guard()
	leased := b.stepping(g, Route{Operation: "charge", Lease: aLease, Complete: asItIs}, func(ctx context.Context) error {
		if _, err := Step(ctx, "one", insertAmount("10")); err != nil {
			return err
		}
		return errors.New("planned")
	})
	b.is(b.send(leased, sent{key: "k"}), 500, "")
	beside := func() int64 {
		return pgtest.Count(t, b.db, "select (select count(*) from holdfast.idempotency_step) + (select count(*) from holdfast.idempotency_request)")
	}
	if n := beside(); n != 2 {
		t.Fatalf("there are %d steps and requests, want 2", n)
	}
	pgtest.Exec(t, b.db, "update holdfast.idempotency set expires_at = clock_timestamp() - interval '1 second'")
	h := b.service(g, b.charge, Route{Operation: "charge"}) // the same route after a deploy
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if n := beside(); n != 0 {
		t.Errorf("%d steps and requests belong to nothing, for ever", n)
	}
	b.kept(2, 1, 1)
}
