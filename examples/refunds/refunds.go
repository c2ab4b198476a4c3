package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

// refund is a row of the table refunds, and what a client sees of it.
type refund struct {
	ID     string `json:"id"`
	Charge string `json:"charge_id"`
	Cents  int64  `json:"amount"`
	State  string `json:"status"`
}

func (r refund) terms() (reference string, cents int64) { return r.ID, r.Cents }

// refund answers POST /refunds {"charge_id": "ch_…", "amount": 1000}. It is pending until the gateway reports that the money
// has arrived.
func (s *service) refund(w http.ResponseWriter, r *http.Request) {
	var asked refund
	if !read(w, r, &asked) {
		return
	}
	transfer[refund]{
		kind: "payouts",
		begin: func(ctx context.Context, tx pgx.Tx) (refund, error) {
			f := refund{newID("rf"), asked.Charge, asked.Cents, "pending"}
			p, refunded, err := locked(ctx, tx, f.Charge)
			switch {
			case err != nil:
				return f, err
			case p.State != "captured":
				return f, refuse(http.StatusConflict, "CONFLICT.payment_state", "the payment is %s", p.State)
			case f.Cents <= 0 || f.Cents > p.Cents-refunded:
				return f, refuse(http.StatusUnprocessableEntity, "VALIDATION.amount", "of %d that were paid, %d are given back: %d are not left", p.Cents, refunded, f.Cents)
			}
			_, err = tx.Exec(ctx, "insert into refunds (id, charge, cents, state) values ($1, $2, $3, $4)", f.ID, f.Charge, f.Cents, f.State)
			return f, err
		},
		terms: refund.terms,
		record: func(ctx context.Context, tx pgx.Tx, f refund, receipt string) (refund, error) {
			// Not the state: the gateway's webhook may have been quicker.
			if _, err := tx.Exec(ctx, "update refunds set receipt = $2 where id = $1", f.ID, receipt); err != nil {
				return f, err
			}
			return f, s.publish(ctx, tx, "refund.requested", f.ID, f)
		},
		giveUp: func(ctx context.Context, tx pgx.Tx, f refund) (refund, error) {
			f.State = "declined"
			if _, err := tx.Exec(ctx, "update refunds set state = $2 where id = $1", f.ID, f.State); err != nil {
				return f, err
			}
			return f, s.publish(ctx, tx, "refund.declined", f.ID, f)
		},
	}.answer(s, w, r)
}

// succeeded handles the gateway's refund.succeeded: the money has arrived, and is booked. It has no guard of its own
// against a second entry: the inbox is it.
func (s *service) succeeded(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	var arrived struct {
		Data movement `json:"data"`
	}
	if err := json.Unmarshal(e.Payload, &arrived); err != nil {
		return retry.Permanent(err)
	}
	f := refund{ID: arrived.Data.Reference, State: "succeeded"}
	err := tx.QueryRow(ctx, "update refunds set state = $2 where id = $1 returning charge, cents", f.ID, f.State).Scan(&f.Charge, &f.Cents)
	if err != nil { // Where there is no such refund, it may yet be committed: the inbox tries again.
		return fmt.Errorf("find refund %s: %w", f.ID, err)
	}
	if _, err := tx.Exec(ctx, "insert into ledger (reference, cents) values ($1, $2)", f.ID, -f.Cents); err != nil {
		return fmt.Errorf("book refund: %w", err)
	}
	return s.publish(ctx, tx, "refund.succeeded", f.ID, f)
}
