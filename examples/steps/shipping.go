package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/retry"
)

// tables are the service's own.
const tables = `create table shipments (order_id text not null, shelf text not null, receipt text not null)`

// order is the payload of order.placed.
type order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// shipping is a consumer that reserves what was ordered, charges it, and notes where it has to be taken from.
type shipping struct {
	services string // where they are
	http     *http.Client
}

// snippet: steps
func (s *shipping) ship(ctx context.Context, tx pgx.Tx, o order, e holdfast.Event) error {
	shelf, err := inbox.Step(ctx, "reserve", func(ctx context.Context, key string) (string, error) {
		return s.call(ctx, "/warehouse", key, o)
	})
	if err != nil {
		return err
	}
	receipt, err := inbox.Step(ctx, "charge", func(ctx context.Context, key string) (string, error) {
		return s.call(ctx, "/payments", key, o)
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into shipments (order_id, shelf, receipt) values ($1, $2, $3)", o.ID, shelf, receipt)
	return err
}

// end snippet

// careless is ship without steps: each attempt calls anew.
func (s *shipping) careless(ctx context.Context, tx pgx.Tx, o order, e holdfast.Event) error {
	now := time.Now().String()
	shelf, err := s.call(ctx, "/warehouse", now, o)
	if err != nil {
		return err
	}
	receipt, err := s.call(ctx, "/payments", now, o)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into shipments (order_id, shelf, receipt) values ($1, $2, $3)", o.ID, shelf, receipt)
	return err
}

// snippet: call
// call asks a service for something, with a key by which it knows the request again.
func (s *shipping) call(ctx context.Context, path, key string, o order) (answer string, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return "", retry.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.services+path, bytes.NewReader(body))
	if err != nil {
		return "", retry.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	res, err := s.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if err := retry.ErrorOf(res); err != nil {
		return "", err
	}
	err = json.NewDecoder(res.Body).Decode(&answer)
	return answer, err
}

// end snippet
