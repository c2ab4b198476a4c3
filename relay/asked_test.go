package relay_test

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// Nothing is published twice, and the other lane goes on.
func TestAsked_ALaneThatIsAskedForIsHandedOverAndLeftAlone(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	run(t, pool, b, relay.Config{Lease: 20 * time.Second})
	const owners = "select count(*) from holdfast.lane where owner is not null"
	wait.Until(t, "both lanes have an owner", func() bool { return pgtest.Count(t, pool, owners) == 2 })
	keys := [2]string{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		keys[lane.Of(key, "", 2)] = key
	}
	write(t, pool, event(keys[0], "1"), event(keys[1], "2"))
	arrives(t, b, "1", "2")

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	pgtest.Exec(t, tx, "select pg_advisory_xact_lock($1, $2)", int32(lane.HandOverClass), lane.HandOverNumber("holdfast", 1))
	pgtest.Exec(t, tx, "select pg_advisory_xact_lock($1, $2)", int32(lane.HandOverClass), lane.HandOverNumber("another schema", 0))
	wait.Until(t, "the lane is handed over", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.lane where lane = 1 and owner is null") == 1
	})
	write(t, pool, event(keys[0], "3"), event(keys[1], "4"))
	arrives(t, b, "3")
	epoch := pgtest.Count(t, pool, "select epoch from holdfast.lane where lane = 1")
	if wait.For(time.Second, func() bool { return pgtest.Count(t, pool, owners) == 2 }) || b.has("4") {
		t.Error("the lane was claimed while it was asked for")
	}

	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	arrives(t, b, "4")
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.lane where lane = 1 and epoch = $1 + 1", epoch); n != 1 {
		t.Error("the lane had another owner meanwhile")
	}
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.lane where lane = 0 and epoch = 1"); n != 1 {
		t.Error("the other lane was lost")
	}
	wantOnce(t, b)
}
