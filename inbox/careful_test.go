package inbox

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

// Else a payload that kills its process would be started once more, uncounted, after every hand-over.
func TestAnOwnerThatStopsBeforeItHasGoneThroughAnUncleanEndLeavesTheRestOfItToTheNext(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, 0, false)`)
	log := logOf(event("0", "a"), event("1", "b"), event("2", "c"))
	for _, row := range []struct {
		name     string
		all      bool // the owner gets past what may have been in hand
		position int64
		orderly  int64
	}{
		{"an owner that gets to the first event only", false, 1, 0},
		{"another", false, 1, 0},
		{"one that gets to the end", true, 3, 1},
		{"one that finds nothing left", true, 3, 1},
	} {
		pgtest.Exec(t, b.db, "update holdfast.consumer_position set clean = false")
		in := b.inbox()
		in.Handle("order.placed", effectOf)
		assigned := make(chan struct{})
		in.c.Observer.OnAssigned = func(Partition, int64) { close(assigned) }
		g := newFakeGeneration(log)
		if !row.all {
			g.gate = make(chan struct{})
		}
		stop := b.consumeFake(in, g)
		<-assigned
		b.awaitSettled(row.position)
		stop()
		if n := b.count("select count(*) from holdfast.consumer_position where clean"); n != row.orderly {
			t.Errorf("%s: %d partitions were left in order, want %d", row.name, n, row.orderly)
		}
		if n := b.count("select position from holdfast.consumer_position"); n != row.position {
			t.Errorf("%s: it is at %d, want %d", row.name, n, row.position)
		}
	}
}
