package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// tables are the service's own.
const tables = `
create table payments (order_id text not null, cents int not null);
create table welcomes (customer text not null);
`

// order is the payload of order.placed.
type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// billing is a consumer that charges orders, and welcomes customers.
type billing struct {
	payments string // where the provider is
	http     *http.Client
}

func newBilling(pool *pgxpool.Pool, schema, payments string, log *slog.Logger) (*inbox.Inbox, error) {
	in, err := inbox.New(pool, inbox.Config{
		Schema:   schema,
		Consumer: "billing",
		Logger:   log,
		// Three attempts within milliseconds: no outage would fit into them.
		Retry: retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: 10 * time.Millisecond},
	})
	if err != nil {
		return nil, err
	}
	// snippet: needs
	b := &billing{
		payments: payments,
		http:     &http.Client{Timeout: 2 * time.Second}, // much shorter than inbox.Config.Timeout
	}
	in.Handle("order.placed", b.charge, inbox.Needs("payments"))
	in.Handle("customer.joined", b.welcome) // needs Postgres only, and does not wait for payments
	// end snippet
	return in, nil
}

// snippet: charge
func (b *billing) charge(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	var o order
	if err := json.Unmarshal(e.Payload, &o); err != nil {
		return retry.Permanent(err)
	}
	if err := b.call(ctx, e); err != nil {
		return inbox.Unavailable("payments", err) // a refused card stays a failure of this event
	}
	_, err := tx.Exec(ctx, "insert into payments (order_id, cents) values ($1, $2)", o.ID, o.Cents)
	return err
}

// call asks the provider to charge an order. All calls of an event have one key, so it is charged once.
func (b *billing) call(ctx context.Context, e holdfast.Event) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.payments+"/charges", bytes.NewReader(e.Payload))
	if err != nil {
		return retry.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", e.Source+"/"+e.ID)
	res, err := b.http.Do(req)
	if err != nil {
		return err // no answer: refused, reset, too late, a certificate that has expired
	}
	defer res.Body.Close()
	return retry.ErrorOf(res) // a 503 with its Retry-After; a 402 is about this card
}

// end snippet

func (b *billing) welcome(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	_, err := tx.Exec(ctx, "insert into welcomes (customer) values ($1)", e.Key)
	return err
}
