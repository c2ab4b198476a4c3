package quickstart

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// The code of docs/guides/add-to-your-service.md.

// snippet: add-write

// Move is a transaction that the service had before. Only its last statement is new. The service makes events once, when it
// starts: outbox.New(outbox.Config{Source: "shop"}).
func Move(ctx context.Context, tx pgx.Tx, events *outbox.Outbox, customer, city string) error {
	if _, err := tx.Exec(ctx, "update customers set city = $2 where id = $1", customer, city); err != nil {
		return err
	}
	return events.Write(ctx, tx, holdfast.Event{Topic: "customers", Key: customer, Type: "customer.moved", Payload: []byte(city)})
}

// end snippet
