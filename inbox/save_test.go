package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The answer to a save may be lost with a connection, and the time-out be the first to notice. What is handled afterwards
// has to be saved soon all the same: after a crash everything behind the position is read again.
func TestSave_ASaveThatHungIsFollowedByTheNextSoon(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	g := newFakeGeneration(logOf(event("1", "k"), event("2", "k")))
	g.gate = make(chan struct{})
	in := b.inbox()
	locked := pgtest.Begin(b, b.db)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "1" { // Nobody saves until this is rolled back.
			pgtest.Exec(t, locked, "select from holdfast.consumer_position for update")
		}
		return effectOf(ctx, tx, e)
	})
	b.consumeFake(in, g)
	b.awaitOutcome("1", Handled)
	time.Sleep(3 * time.Second) // sleep: how long a save hangs, at a real Postgres, is what the pause after it may not grow with
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.awaitSettled(1)
	freed := time.Now() // A rest in proportion to the save that hung would last 30 s.
	close(g.gate)
	b.awaitSettled(2)
	if took := time.Since(freed); took > 25*time.Second {
		t.Errorf("the next save came %s after one that hung for three seconds", took)
	}
}
