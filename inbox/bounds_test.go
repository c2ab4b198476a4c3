package inbox

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The last owner goes on while the next one waits for the fence, or is frozen there: its position is then beyond the end
// that was asked for before.
func TestBounds_APositionBeyondAnEndThatIsOlderThanItIsNoLossOfTheLog(t *testing.T) {
	log := logOf(event("0", "a"), event("1", "b"), event("2", "c"), event("3", "d"))
	for name, row := range map[string]struct {
		position int64
		ends     []int64
		lost     bool
	}{
		"the end was asked for early":           {3, []int64{1}, false},
		"the log has really become shorter":     {5, nil, true},
		"it has, and grows to where it was not": {9, []int64{2, 3, 4}, true},
		"it has, and grows past the position":   {3, []int64{1, 2}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position, clean) values ('billing', 'orders', 0, $1, true)", row.position)
			in := b.inbox()
			in.Handle("order.placed", effectOf)
			in.registry.start()
			g := newFakeGeneration(log)
			g.from, g.ends = min(row.position, 4), row.ends
			stop := b.consumeFake(in, g)
			if row.lost {
				b.await("a second look at it", func(o *observations) bool { return len(o.held) > 1 })
				if err := b.awaitHeld(); !errors.Is(err, source.ErrOffsetOutOfRange) {
					t.Errorf("it is held because of %v", err)
				}
				if n := b.count("select count(*) from effect"); n != 0 {
					t.Errorf("%d effects", n)
				}
				return
			}
			b.awaitSettled(4)
			stop()
			if n := b.count("select count(*) from effect"); n != 1 {
				t.Errorf("%d effects, want that of the last event", n)
			}
		})
	}
}
