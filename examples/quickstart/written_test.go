package quickstart

import (
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The code of docs/guides/testing.md.
func TestWritten_AnOrderIsWritten(t *testing.T) {
	pool := migrated.New(t).Pool
	pgtest.Exec(t, pool, "create table orders (id bigint, customer text, cents bigint)")
	// snippet: written
	start := holdfasttest.Now(t, pool)
	if err := PlaceOrder(t.Context(), pool, Order{ID: 1, Customer: "alice", Cents: 100}); err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireEvents(t, holdfasttest.WrittenSince(t, pool, start), holdfast.Event{Type: "order.placed", Key: "alice"})
	// end snippet
}
