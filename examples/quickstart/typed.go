package quickstart

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/retry"
)

// The code of docs/guides/typed-handlers.md.

// snippet: typed-write

// OrderPlaced is the payload of "order.placed".
type OrderPlaced struct {
	ID    string `json:"id"`
	Cents int64  `json:"cents"`
}

// Placed writes such events.
var Placed = outbox.Typed[OrderPlaced]{
	Topic: "orders", Type: "order.placed",
	KeyFunc: func(o OrderPlaced) string { return o.ID },
}

// PlaceTyped stores an order, and says so.
func PlaceTyped(ctx context.Context, tx pgx.Tx, o OrderPlaced) error {
	if _, err := tx.Exec(ctx, "insert into orders (id, cents) values ($1, $2)", o.ID, o.Cents); err != nil {
		return err
	}
	return Placed.Write(ctx, tx, o)
}

// end snippet

// snippet: typed-on

// RegisterBilling registers what billing handles.
func RegisterBilling(in *inbox.Inbox) {
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o OrderPlaced, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoices (order_id, cents) values ($1, $2)", o.ID, o.Cents)
		return err
	})
}

// end snippet

// RegisterPolicies registers a handler with settings of its own.
func RegisterPolicies(in *inbox.Inbox, notify inbox.Handler) {
	// snippet: typed-policy
	in.Handle("customer.notified", notify,
		inbox.WithRetry(retry.Policy{Attempts: 3, Base: time.Minute}),
		inbox.WithTimeout(2*time.Minute),
		inbox.WithConcurrency(2), // the mail server takes no more
		inbox.WithHoldKey(false),
	)
	// end snippet
}

// snippet: typed-upcast

// OrderPlacedV2 has a currency.
type OrderPlacedV2 struct {
	ID       string `json:"id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// RegisterVersions registers one handler for both versions.
func RegisterVersions(in *inbox.Inbox) {
	inbox.On(in, "order.placed.v2", func(ctx context.Context, tx pgx.Tx, o OrderPlacedV2, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoices (order_id, amount, currency) values ($1, $2, $3)", o.ID, o.Amount, o.Currency)
		return err
	}, inbox.WithUpcast("order.placed", func(o OrderPlaced) (OrderPlacedV2, error) {
		return OrderPlacedV2{ID: o.ID, Amount: o.Cents, Currency: "EUR"}, nil
	}))
}

// end snippet
