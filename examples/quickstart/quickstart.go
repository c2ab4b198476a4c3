// Package quickstart is the code that the README shows: a producer, a relay, a consumer and an idempotent route, each as
// small as it can be. The example orders runs all of this and breaks some of it on purpose.
package quickstart

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: producer

// Order is a row of the table orders, and the payload of its event.
type Order struct {
	ID       int64
	Customer string
	Cents    int64
}

// placed says where events of the type "order.placed" go, and which of them keep their order: those of one customer.
var placed = outbox.Typed[Order]{Topic: "orders", Type: "order.placed", KeyFunc: func(o Order) string { return o.Customer }}

// PlaceOrder commits an order and its event together, or neither.
func PlaceOrder(ctx context.Context, pool *pgxpool.Pool, o Order) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// A customer's orders now commit one after the other, so their events have an order.
		if err := outbox.Lock(ctx, tx, o.Customer); err != nil {
			return err
		}
		const insert = "insert into orders (customer, cents) values ($1, $2) returning id"
		if err := tx.QueryRow(ctx, insert, o.Customer, o.Cents).Scan(&o.ID); err != nil {
			return err
		}
		return placed.Write(ctx, tx, o)
	})
}

// end snippet

// snippet: relay

// Publish publishes committed events to Kafka until ctx is done.
func Publish(ctx context.Context, pool *pgxpool.Pool, brokers ...string) error {
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, kafkago.PublisherConfig{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// end snippet

// snippet: consumer

// Bill writes one invoice for each order, and runs until ctx is done.
func Bill(ctx context.Context, pool *pgxpool.Pool, brokers ...string) error {
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		return err
	}
	inbox.On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o Order, _ holdfast.Event) error {
		// The invoice and the inbox row commit together.
		_, err := tx.Exec(ctx, "insert into invoices (order_id, cents) values ($1, $2)", o.ID, o.Cents)
		return err
	})
	source, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		return err
	}
	return in.Consume(ctx, source)
}

// end snippet

// snippet: route

// Refunds makes POST /refunds safe to send again. account says which user a request comes from.
func Refunds(pool *pgxpool.Pool, account func(*http.Request) (string, error)) (http.Handler, error) {
	guard, err := idempotency.New(pool, idempotency.Config{Principal: account})
	if err != nil {
		return nil, err
	}
	refund := func(w http.ResponseWriter, r *http.Request) {
		tx := idempotency.Tx(r.Context()) // commits together with the answer
		_, err := tx.Exec(r.Context(), "insert into refunds (charge) values ($1)", r.FormValue("charge"))
		if err != nil {
			http.Error(w, "try again", http.StatusInternalServerError) // rolled back, and the key is free
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", guard.Middleware(http.HandlerFunc(refund)))
	return mux, nil
}

// end snippet
