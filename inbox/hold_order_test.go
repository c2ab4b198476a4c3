package inbox

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// With HoldKey a letter holds what comes after its event. An event that becomes a dead letter at once, as one of a type
// that no node handles, must not hold what waits before it for another try; and its replay takes the place that it had.
func TestHoldOrder_ALetterHoldsWhatComesAfterItAndNotWhatWaitsBeforeIt(t *testing.T) {
	for _, row := range []struct {
		name     string
		replayed bool // while the first event still waits
	}{
		{"the first event is handled while the letter is open", false},
		{"the letter is replayed while the first event waits", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			var away atomic.Bool
			away.Store(true)
			handle := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == "1" && away.Load() {
					return errors.New("a dependency is away")
				}
				return effectOf(ctx, tx, e)
			}
			config := func(c *Config) {
				c.HoldKey, c.UnknownType = true, UnknownDead
				c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
			}
			in := b.inbox(config)
			in.Handle("order.placed", handle)
			b.receive(in, event("1", "k"), Retrying)
			second := event("2", "k")
			second.Type = "order.new"
			b.receive(in, second, Dead)
			b.receive(in, event("3", "k"), Stored)
			later := b.inbox(config) // a node of the next version
			later.Handle("order.placed", handle)
			later.Handle("order.new", handle)
			replay := func() {
				t.Helper()
				if n, err := b.letters().Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			if row.replayed {
				replay()
			}
			b.run(later.Run)
			// What is stored afterwards, and handled, shows that the node has looked for what is due.
			handledOf := func(marker string) int64 {
				b.store(later, event(marker, marker))
				b.awaitOutcome(marker, Handled)
				return b.count("select (select count(*) from effect where key = 'k') + (select count(*) from holdfast.stored where key = 'k' and lease_until > now())")
			}
			if n := handledOf("a"); n != 0 {
				t.Errorf("%d events were handled before the first one of their key", n)
			}
			away.Store(false)
			pgtest.Exec(t, b.db, "update holdfast.stored set next_at = now() where event_id = '1'")
			b.awaitOutcome("1", Handled)
			if !row.replayed {
				if n := handledOf("b"); n != 1 {
					t.Errorf("%d events were handled while a letter holds the key, want that before it alone", n)
				}
				replay()
			}
			b.awaitOutcome("2", Handled)
			b.awaitOutcome("3", Handled)
			rows, _ := b.db.Query(t.Context(), "select id from effect where key = 'k' order by n")
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if want := []string{"1", "2", "3"}; err != nil || !slices.Equal(got, want) {
				t.Errorf("handled in the order %q, want %q: %v", got, want, err)
			}
		})
	}
}
