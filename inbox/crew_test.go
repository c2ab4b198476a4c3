package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// A key with many events gives its worker back now and then. What of it comes next was read before most that is ready by then,
// and must not wait for all of that: it would fall behind as far as there are other keys.
func TestABusyKeyWaitsOnlyForWhatWasReadBeforeIt(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := pause(ctx, maxChain+time.Millisecond); err != nil { // So that the worker is given back behind each.
			return err
		}
		return effectOf(ctx, tx, e)
	})
	const busy, others = 6, 24
	var events []holdfast.Event
	for i := range busy {
		events = append(events, event(fmt.Sprintf("busy %d", i), "busy"))
	}
	for i := range others {
		events = append(events, event(fmt.Sprintf("other %02d", i), fmt.Sprintf("key %d", i)))
	}
	b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(int64(len(events)))
	rows, _ := b.db.Query(t.Context(), "select id from effect order by n")
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(got, events, func(id string, e holdfast.Event) bool { return id == e.ID }) {
		t.Errorf("handled in the order %q, not in that in which they were read", got)
	}
}

func TestJobsAreTakenInTheOrderInWhichTheirEventsWereReadWhateverTheOrderInWhichTheyBecameReady(t *testing.T) {
	c := newCrew(nil)
	for _, read := range []int64{5, 2, 9, 1, 7, 3} {
		c.add(&job{read: read})
	}
	var got []int64
	for j := c.take(false); j != nil; j = c.take(false) {
		got = append(got, j.read)
	}
	if want := []int64{1, 2, 3, 5, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("taken in the order %d, want %d", got, want)
	}
}
