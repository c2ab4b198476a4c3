package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// All saves wait for the one that is being sent: one that waited for ever, on a connection that is dead or for a table that
// somebody has locked, would cost the relay all lanes again and again.
func TestSaver_ASaveTakesNoLongerThanALease(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.Lanes(t, 1)
	r := newRelay(db.Pool, nil, Config{Name: "relay", Lease: time.Minute, Logger: noLog}.withDefaults(), simStatements)
	r.env.start = func(_ context.Context, l *lane) { l.lost = func(error) {}; r.enter(l) }
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil || len(r.owned()) != 1 {
		t.Fatalf("%d lanes, %v", len(r.owned()), err)
	}
	r.c.Lease = time.Second
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	pgtest.Exec(t, tx, "lock table holdfast.lane in access exclusive mode")
	saved := make(chan error, 1)
	go func() { saved <- r.saver.save(t.Context(), r.owned()) }()
	select {
	case err := <-saved:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it says %v", err)
		}
	case <-time.After(wait.Limit()):
		t.Error("with a lease of a second it waits for half a minute")
	}
}
