// Package quickstart is the code that the README and the guides show, each piece as small as it can be. The example orders runs all of this and
// breaks some of it on purpose.
package quickstart

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/service"
)

// snippet: readme

// Order is a row of the table orders, and the payload of its event. Create your own tables first:
//
//	create table orders (id bigint primary key, customer text, cents bigint);
//	create table invoices (order_id bigint primary key, cents bigint);
type Order struct {
	ID, Cents int64
	Customer  string
}

// placed sends order.placed to the topic orders, keyed, and so ordered, by customer.
var placed = outbox.Typed[Order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o Order) string { return o.Customer }}

// PlaceOrder commits an order and its event together, or neither.
func PlaceOrder(ctx context.Context, pool *pgxpool.Pool, o Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := outbox.Lock(ctx, tx, o.Customer); err != nil { // this customer's orders commit one at a time
			return err
		}
		if _, err := tx.Exec(ctx, "insert into orders values ($1, $2, $3)", o.ID, o.Customer, o.Cents); err != nil {
			return err
		}
		return placed.Write(ctx, tx, o)
	})
}

// Run publishes committed events and writes one invoice per order, until ctx is done.
func Run(ctx context.Context, pool *pgxpool.Pool, kafka kafkago.Connection) error {
	publisher, err1 := kafkago.NewPublisher(kafka, kafkago.PublisherConfig{})
	orders, err2 := kafkago.NewGroup(kafka, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	in, err3 := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o Order, _ holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoices (order_id, cents) values ($1, $2)", o.ID, o.Cents)
		return err // the invoice commits together with the event's inbox row
	})
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	s := &service.Service{Pool: pool, Relay: r, CloseFuncs: []func(){publisher.Close}}
	s.Consumers = []service.Consumer{{Inbox: in, Source: orders}}
	return s.Run(ctx) // in the end it stops the consumer first, then the relay
}

// end snippet
