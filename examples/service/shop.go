package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/outbox"
)

const tables = "create table if not exists orders (id text primary key, state text not null default 'placed')"

// Order and Parcel are the payloads of the shop's own events.
type Order struct{ ID string }

type Parcel struct{ Order string }

// Payment is the part of Stripe's event that the shop reads.
type Payment struct {
	Data struct {
		Object struct{ Metadata map[string]string }
	}
}

var (
	placed = outbox.Typed[Order]{Topic: "shop", Type: "order.placed", KeyFunc: func(o Order) string { return o.ID }}
	sent   = outbox.Typed[Parcel]{Topic: "shop", Type: "parcel.sent", KeyFunc: func(p Parcel) string { return p.Order }}
)

// customer is who an Idempotency-Key belongs to. A real service takes it from its authentication: who may choose the header can read
// the answers of others.
func customer(r *http.Request) (string, error) { return r.Header.Get("X-Customer"), nil }

// order places an order. It, its event and the answer commit together. A request that comes again gets the answer again. Its
// row is the lock that orders what is written about it: see outbox.Lock where there is none.
func order(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	tx := idempotency.Tx(r.Context())
	_, err := tx.Exec(r.Context(), "insert into orders (id) values ($1)", o.ID)
	if err == nil {
		err = placed.Write(r.Context(), tx, o)
	}
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // rolled back
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func pick(ctx context.Context, tx pgx.Tx, o Order, _ holdfast.Event) error {
	return set(ctx, tx, o.ID, "placed", "picked")
}

// send sends what is paid. The order's state and the next event commit together.
func send(ctx context.Context, tx pgx.Tx, p Payment, _ holdfast.Event) error {
	if err := set(ctx, tx, p.Data.Object.Metadata["order"], "picked", "paid"); err != nil {
		return err
	}
	return sent.Write(ctx, tx, Parcel{Order: p.Data.Object.Metadata["order"]})
}

func closeOrder(ctx context.Context, tx pgx.Tx, p Parcel, _ holdfast.Event) error {
	return set(ctx, tx, p.Order, "paid", "sent")
}

// set fails, and so is tried again, while the order is not in the state from.
func set(ctx context.Context, tx pgx.Tx, id, from, to string) error {
	tag, err := tx.Exec(ctx, "update orders set state = $3 where id = $1 and state = $2", id, from, to)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("order is not %s", from)
	}
	return err
}
