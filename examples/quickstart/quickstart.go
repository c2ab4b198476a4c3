// Package quickstart is the code that the README and the guides show, each piece as small as it can be. The example orders runs all of this and
// breaks some of it on purpose.
package quickstart

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: readme

// Order is a row of the table orders, and the payload of its event.
type Order struct {
	ID       int64
	Customer string
	Cents    int64
}

// placed sends order.placed to the topic orders, keyed, and so ordered, by customer.
var placed = outbox.Typed[Order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o Order) string { return o.Customer }}

// PlaceOrder commits an order and its event together, or neither.
func PlaceOrder(ctx context.Context, pool *pgxpool.Pool, o Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := outbox.Lock(ctx, tx, o.Customer); err != nil { // this customer's orders commit one at a time
			return err
		}
		const insert = "insert into orders (customer, cents) values ($1, $2) returning id"
		if err := tx.QueryRow(ctx, insert, o.Customer, o.Cents).Scan(&o.ID); err != nil {
			return err
		}
		return placed.Write(ctx, tx, o)
	})
}

// Run publishes committed events and writes one invoice per order, until ctx is done.
func Run(ctx context.Context, pool *pgxpool.Pool, brokers ...string) error {
	kafka := kafkago.Connection{Brokers: brokers}
	publisher, err := kafkago.NewPublisher(kafka, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		return err
	}
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o Order, _ holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoices (order_id, cents) values ($1, $2)", o.ID, o.Cents)
		return err // the invoice commits together with the event's inbox row
	})
	orders, err := kafkago.NewGroup(kafka, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return r.Run(ctx) })
	both.Go(func() error { return in.Consume(ctx, orders) })
	return both.Wait()
}

// end snippet
