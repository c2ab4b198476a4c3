package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

type order struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

type account struct {
	Customer string `json:"customer"`
	Orders   int64  `json:"orders"`
	Cents    int64  `json:"cents"`
}

// tokenHeader has the token of an order's event. A client that sends it back with its next request sees its order there.
const tokenHeader = "Event-Token"

// shop serves POST /orders and GET /accounts/{customer}.
type shop struct {
	pool     *pgxpool.Pool
	outbox   *outbox.Outbox
	relay    *relay.Relay
	waiter   holdfast.Waiter
	patience time.Duration // how long a request may wait for the accounts
	careless bool
}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", s.postOrder)
	mux.HandleFunc("GET /accounts/{customer}", s.getAccount)
	return mux
}

// postOrder answers with the customer's account, the order included: 201. If the accounts are late it answers 202 with the token, by which the client may ask
// again. If they have given the event up it answers 202 without one. The order is safe in any case.
func (s *shop) postOrder(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&o); err != nil {
		http.Error(w, "the body is not an order", http.StatusBadRequest)
		return
	}
	token, err := s.place(r.Context(), o)
	if err != nil {
		s.fail(w, err)
		return
	}
	if s.careless {
		s.answer(w, r, o.Customer, http.StatusCreated)
		return
	}
	settled, err := s.settled(r.Context(), token)
	switch {
	case settled == holdfast.Handled:
		s.answer(w, r, o.Customer, http.StatusCreated)
	case err != nil:
		w.Header().Set(tokenHeader, token.String())
		fallthrough
	default: // a dead letter, for somebody to look at
		w.WriteHeader(http.StatusAccepted)
	}
}

// snippet: wait-for

// place writes the order and its event. The token names the event.
func (s *shop) place(ctx context.Context, o order) (token holdfast.Token, err error) {
	o.ID = uuid.NewString()
	payload, err := json.Marshal(o)
	if err != nil {
		return token, err
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders values ($1, $2, $3)", o.ID, o.Customer, o.Cents); err != nil {
			return err
		}
		token, err = s.outbox.WriteToken(ctx, tx, holdfast.Event{Topic: "shop", Key: o.Customer, Type: "order.placed", Payload: payload})
		return err
	})
	s.relay.Wake() // the relay is in this process: it need not wait until it looks next
	return token, err
}

// settled waits, within limits, until the accounts have settled the event. An error says that they have not.
func (s *shop) settled(ctx context.Context, token holdfast.Token) (holdfast.Settlement, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	return s.waiter.For(ctx, token, "accounts")
}

// end snippet

// getAccount answers with an account. If the client sends the token of an order, the account has that order, unless the accounts have given it up. As long
// as they have not settled it the answer is 503.
func (s *shop) getAccount(w http.ResponseWriter, r *http.Request) {
	if text := r.Header.Get(tokenHeader); text != "" && !s.careless {
		token, err := holdfast.ParseToken(text)
		if err != nil {
			http.Error(w, tokenHeader+": "+err.Error(), http.StatusBadRequest)
			return
		}
		if _, err := s.settled(r.Context(), token); err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the account does not have the order yet", http.StatusServiceUnavailable)
			return
		}
	}
	s.answer(w, r, r.PathValue("customer"), http.StatusOK)
}

func (s *shop) answer(w http.ResponseWriter, r *http.Request, customer string, status int) {
	a := account{Customer: customer}
	err := s.pool.QueryRow(r.Context(), "select orders, cents from accounts where customer = $1", customer).Scan(&a.Orders, &a.Cents)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a)
}

func (s *shop) fail(w http.ResponseWriter, err error) {
	slog.Error("request failed", "error", err)
	http.Error(w, "try again", http.StatusServiceUnavailable)
}
