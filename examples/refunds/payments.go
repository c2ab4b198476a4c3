package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency"
)

// payment is a row of the table payments, and what a client sees of it.
type payment struct {
	ID    string `json:"id"`
	Cents int64  `json:"amount"`
	State string `json:"status"`
}

func (p payment) terms() (reference string, cents int64) { return p.ID, p.Cents }

// capture answers POST /payments {"amount": 5000}.
func (s *service) capture(w http.ResponseWriter, r *http.Request) {
	p := payment{State: "pending"}
	if !read(w, r, &p) {
		return
	}
	transfer[payment]{
		kind: "charges",
		begin: func(ctx context.Context, tx pgx.Tx) (payment, error) {
			if p.Cents <= 0 {
				return p, refuse(http.StatusUnprocessableEntity, "VALIDATION.amount", "the amount must be above 0")
			}
			p := payment{newID("ch"), p.Cents, "pending"}
			_, err := tx.Exec(ctx, "insert into payments (id, account, cents, state) values ($1, $2, $3, $4)", p.ID, accountOf(ctx), p.Cents, p.State)
			return p, err
		},
		terms: payment.terms,
		record: func(ctx context.Context, tx pgx.Tx, p payment, receipt string) (payment, error) {
			return s.become(ctx, tx, p, "captured", "payment.captured", receipt, p.Cents)
		},
		giveUp: func(ctx context.Context, tx pgx.Tx, p payment) (payment, error) {
			return s.become(ctx, tx, p, "declined", "payment.declined", "", 0)
		},
	}.answer(s, w, r)
}

// void answers POST /payments/{id}/void: a payment without refunds is cancelled as a whole.
func (s *service) void(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	transfer[payment]{
		kind: "voids",
		begin: func(ctx context.Context, tx pgx.Tx) (payment, error) {
			p, refunded, err := locked(ctx, tx, id)
			switch {
			case err != nil:
				return p, err
			case p.State != "captured" || refunded > 0:
				return p, refuse(http.StatusConflict, "CONFLICT.payment_state", "the payment is %s, and %d of it were given back", p.State, refunded)
			}
			p.State = "voiding" // from here on nothing of it can be refunded
			_, err = tx.Exec(ctx, "update payments set state = $2 where id = $1", p.ID, p.State)
			return p, err
		},
		terms: payment.terms,
		record: func(ctx context.Context, tx pgx.Tx, p payment, receipt string) (payment, error) {
			return s.become(ctx, tx, p, "voided", "payment.voided", receipt, -p.Cents)
		},
		giveUp: func(ctx context.Context, tx pgx.Tx, p payment) (payment, error) {
			return s.become(ctx, tx, p, "captured", "payment.void_declined", "", 0)
		},
	}.answer(s, w, r)
}

// become gives a payment its state, books what was moved, and publishes it.
func (s *service) become(ctx context.Context, tx pgx.Tx, p payment, state, event, receipt string, booked int64) (payment, error) {
	p.State = state
	if _, err := tx.Exec(ctx, "update payments set state = $2, receipt = coalesce(nullif($3, ''), receipt) where id = $1", p.ID, state, receipt); err != nil {
		return p, err
	}
	if booked != 0 {
		if _, err := tx.Exec(ctx, "insert into ledger (reference, cents) values ($1, $2)", p.ID, booked); err != nil {
			return p, err
		}
	}
	return p, s.publish(ctx, tx, event, p.ID, p)
}

// locked reads a payment of the account that asks, and how much of it was given back or is about to be. It stays locked
// until tx ends: what is decided by it is true then.
func locked(ctx context.Context, tx pgx.Tx, id string) (p payment, refunded int64, err error) {
	p.ID = id
	err = tx.QueryRow(ctx, "select cents, state from payments where id = $1 and account = $2 for update", id, accountOf(ctx)).Scan(&p.Cents, &p.State)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, 0, refuse(http.StatusNotFound, "VALIDATION.charge", "there is no such payment")
	}
	if err == nil {
		err = tx.QueryRow(ctx, "select coalesce(sum(cents), 0) from refunds where charge = $1 and state <> 'declined'", id).Scan(&refunded)
	}
	return p, refunded, err
}

// read reads a body. One that cannot be read is nobody's operation: its key stays free.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	err := json.NewDecoder(r.Body).Decode(into)
	if err != nil {
		idempotency.DoNotStore(r.Context())
		answerProblem(w, http.StatusBadRequest, "VALIDATION.body", "the body must be JSON")
	}
	return err == nil
}
