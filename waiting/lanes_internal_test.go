package waiting

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestLanes_ALaneThatIsNotHandedOverIsNamedWithItsOwner(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	r, err := New(db.Pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 3, 'gone', '', -n, 'topic', 'infinity', n, 's', 't', now() from generate_series(1, 2) n`)
	waited := time.Duration(0)
	r.now = func() time.Time { return time.Unix(0, 0).Add(waited) }
	r.rest = func(_ context.Context, by time.Duration) error { waited += max(by, time.Second); return nil }
	giveUp := func() (int, error) {
		waited = 0
		return r.GiveUp(t.Context(), Filter{Origin: "relay", Topic: "gone"}, Options{By: "ann"})
	}

	pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'the sidecar', lease_until = now() + interval '1 hour', epoch = 7")
	if n, err := giveUp(); n != 0 || err == nil || !strings.Contains(err.Error(), `lane 3, after 0 of 2: the relay "the sidecar" did not hand the lane over within 1m0s`) || waited < time.Minute {
		t.Errorf("after %v: %d, %v", waited, n, err)
	}

	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, tx, "select pg_advisory_xact_lock($1, $2)", int32(lane.HandOverClass), lane.HandOverNumber("holdfast", 3))
	if n, err := giveUp(); n != 0 || err == nil || !strings.Contains(err.Error(), "another session changes what waits in the lane") {
		t.Errorf("%d, %v", n, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Its process is frozen: whatever it does when it wakes names an owner and an epoch that the lane has no more.
	pgtest.Exec(t, db.Pool, "update holdfast.lane set lease_until = now() - interval '1 second'")
	if n, err := giveUp(); n != 2 || err != nil || waited != 0 {
		t.Errorf("after %v: %d, %v", waited, n, err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where lane = 3 and owner is null and epoch = 8 and lease_until = '-infinity'"); n != 1 {
		t.Error("its owner may still write")
	}
}

func TestLanes_ALaneIsAwayFromItsRelayForAMoment(t *testing.T) {
	for _, c := range []struct {
		rows int
		took time.Duration
		want int
	}{
		{1000, 0, 2000}, {1000, 49 * time.Millisecond, 2000}, {1000, 50 * time.Millisecond, 1000}, {1000, 100 * time.Millisecond, 1000},
		{1000, 101 * time.Millisecond, 500}, {4000, 0, 5000}, {5000, time.Hour, 2500}, {150, time.Second, 100}, {100, time.Hour, 100},
	} {
		if got := paced(c.rows, c.took); got != c.want {
			t.Errorf("after %d rows in %v come %d, want %d", c.rows, c.took, got, c.want)
		}
	}
}
