package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The hand-written idempotency table is the other half of what people write: insert the key, have the effect, and keep the answer,
// in one transaction. A second request of the key waits for the first at the primary key, and gets its answer.
const handwrittenKeys = `
create table idempotency_keys (
    account      text not null,
    key          text not null,
    request_hash bytea not null,
    status       int,
    body         bytea,
    created_at   timestamptz not null default now(),
    expires_at   timestamptz not null default now() + interval '1 day',
    primary key (account, key)
);
create index on idempotency_keys (expires_at)`

var errOtherRequest = errors.New("the key was used for another request")

// handwrittenOrders places an order once for each key.
func handwrittenOrders(pool *pgxpool.Pool, insert func(context.Context, pgx.Tx) error) http.Handler {
	place := func(r *http.Request, key string) (status int, body []byte, replayed bool, err error) {
		request, err := io.ReadAll(r.Body)
		if err != nil {
			return 0, nil, false, err
		}
		hash := sha256.Sum256(append([]byte(r.Method+" "+r.URL.Path+"\n"), request...))
		err = pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(r.Context(), "insert into idempotency_keys (account, key, request_hash) values ($1, $2, $3) on conflict do nothing", "bench", key, hash[:])
			if err != nil {
				return err
			}
			if replayed = tag.RowsAffected() == 0; replayed {
				var known []byte
				err := tx.QueryRow(r.Context(), "select request_hash, status, body from idempotency_keys where account = $1 and key = $2", "bench", key).Scan(&known, &status, &body)
				if err == nil && string(known) != string(hash[:]) {
					err = errOtherRequest
				}
				return err
			}
			if err := insert(r.Context(), tx); err != nil {
				return err
			}
			status, body = http.StatusCreated, []byte(orderPlaced)
			_, err = tx.Exec(r.Context(), "update idempotency_keys set status = $3, body = $4 where account = $1 and key = $2", "bench", key, status, body)
			return err
		})
		return status, body, replayed, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body, replayed, err := place(r, r.Header.Get("Idempotency-Key"))
		if err != nil {
			http.Error(w, fmt.Sprint("place an order: ", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Idempotency-Status", "stored")
		if replayed {
			w.Header().Set("Idempotency-Status", "replayed")
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
	})
}
