package holdfasttest_test

import (
	"context"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/outbox"
)

// inTest returns what a test of a service has: its *testing.T and a database where holdfast.Migrate has run.
func inTest() (testing.TB, *pgxpool.Pool) { return exampledb.T(), exampledb.New() }

// billingService is the consumer of the service under test: it sends an invoice for each order.
func billingService(pool *pgxpool.Pool) *inbox.Inbox {
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "invoices", Type: "invoice.sent", Key: e.Key, Payload: e.Payload})
	})
	return in
}
