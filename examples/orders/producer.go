package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// order is a row of the table orders, and the payload of its event.
type order struct {
	ID       int64  `json:"id"`
	Customer string `json:"customer"`
	Country  string `json:"country"`
	Cents    int64  `json:"cents"`
}

// shop is the service that takes orders.
type shop struct {
	pool   *pgxpool.Pool
	outbox *outbox.Outbox
	topic  string
}

func newShop(pool *pgxpool.Pool, schema, topic string) (*shop, error) {
	// Where the schema is called "holdfast" and no source is to be named, outbox.Write does without this.
	box, err := outbox.New(outbox.Config{Schema: schema, Source: "shop"})
	if err != nil {
		return nil, err
	}
	return &shop{pool: pool, outbox: box, topic: topic}, nil
}

// place writes an order and its event: both are there afterwards, or neither.
func (s *shop) place(ctx context.Context, o order) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// A customer's orders wait for each other here, so that they have an order to be kept.
		if err := s.outbox.Lock(ctx, tx, o.Customer); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "insert into orders (customer, country, cents) values ($1, $2, $3) returning id",
			o.Customer, o.Country, o.Cents).Scan(&o.ID); err != nil {
			return err
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		event := holdfast.Event{Topic: s.topic, Key: o.Customer, Type: "order.placed", Payload: payload}
		if err := s.outbox.Write(ctx, tx, event); err != nil {
			return err
		}
		return charge(o) // an error here takes the order and its event back
	})
}

var errDeclined = errors.New("the card was declined")

// charge stands for the customer's bank, which draws a line at a thousand.
func charge(o order) error {
	if o.Cents > 1000_00 {
		return errDeclined
	}
	return nil
}
