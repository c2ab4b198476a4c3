package holdfasttest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
)

// NewBilling is the consumer of the service under test.
func NewBilling(pool *pgxpool.Pool) (*inbox.Inbox, error) {
	billing, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		return nil, err
	}
	billing.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "invoices", Type: "invoice.sent", Key: e.Key, Payload: e.Payload})
	})
	return billing, nil
}

// anOrderIsInvoiced would be a Test function of the service.
func anOrderIsInvoiced(t *testing.T) {
	db := holdfasttest.Database(t, os.Getenv("TEST_DATABASE_URL")) // a new one, migrated, dropped after the test
	billing, err := NewBilling(db)
	if err != nil {
		t.Fatal(err)
	}
	tx := holdfasttest.Begin(t, db) // rolled back after the test

	event := holdfast.Event{Type: "order.placed", Key: "alice", Payload: []byte(`{"cents": 1200}`)}
	outcome, err := holdfasttest.Handle(t, tx, billing, event)
	if outcome != inbox.Handled || err != nil {
		t.Fatalf("got %s, %v", outcome, err)
	}
	holdfasttest.RequireWritten(t, tx, holdfast.Event{Type: "invoice.sent", Key: "alice"})
}

// aStoredOrderIsInvoiced lets the parts run, as they do in production, and waits for them.
func aStoredOrderIsInvoiced(t *testing.T) {
	db := holdfasttest.Database(t, os.Getenv("TEST_DATABASE_URL"))
	billing, err := NewBilling(db)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- billing.Run(ctx) }()

	start := holdfasttest.Now(t, db)
	event := holdfast.Event{ID: "1", Source: "shop", Type: "order.placed", Topic: "orders", Key: "alice"}
	if err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := billing.StoreTx(ctx, tx, event)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// No relay runs here, so the invoice's own event stays in the log: only the consumer comes to rest.
	idle := holdfasttest.Idle{Consumers: []string{"billing"}, Within: 10 * time.Second, NoRelay: true}
	if err := holdfasttest.WaitIdle(ctx, db, idle); err != nil {
		t.Fatal(err)
	}
	holdfasttest.RequireEvents(t, holdfasttest.WrittenSince(t, db, start), holdfast.Event{Type: "invoice.sent", Key: "alice"})
	stop()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

func Example() {}
