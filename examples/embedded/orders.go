package main

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

const ordersTable = `
create table if not exists orders (
    id       bigint generated always as identity primary key,
    customer text not null,
    cents    bigint not null
)`

type order struct {
	ID       int64  `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	mux.Handle("GET /livez", s.service.Probes())
	mux.Handle("GET /readyz", s.service.Probes())
	return mux
}

// postOrder answers after the commit: 201 means that the order and its event are both safe. A
// client that gets no answer cannot know; package idempotency lets it ask again without ordering
// twice.
func (s *shop) postOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&o); err != nil {
		http.Error(w, "the body is not an order: "+err.Error(), http.StatusBadRequest)
		return
	}
	if o.Customer == "" || o.Cents <= 0 {
		http.Error(w, "an order needs a customer, and cents above 0", http.StatusBadRequest)
		return
	}
	if err := s.place(r.Context(), &o); err != nil {
		s.log.Error("order was not stored", "error", err)
		http.Error(w, "the order could not be stored: try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(o)
}

// place writes the order and its event, and wakes the relay of this process.
func (s *shop) place(ctx context.Context, o *order) error {
	// snippet: embedded
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.outbox.Lock(ctx, tx, o.Customer); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "insert into orders (customer, cents) values ($1, $2) returning id", o.Customer, o.Cents).Scan(&o.ID); err != nil {
			return err
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return s.outbox.Write(ctx, tx, holdfast.Event{Topic: s.topic, Key: o.Customer, Type: "order.placed", Payload: payload})
	})
	if err == nil {
		s.relay.Wake() // after the commit: it publishes now, and not when it looks next
	}
	return err
	// end snippet
}
