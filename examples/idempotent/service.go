package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/outbox"
)

const tables = `create table refund (id bigint generated always as identity primary key, charge text not null, cents int not null)`

type service struct {
	outbox *outbox.Outbox
}

func newService(pool *pgxpool.Pool, schema string, log *slog.Logger) (http.Handler, error) {
	out, err := outbox.New(outbox.Config{Schema: schema})
	if err != nil {
		return nil, err
	}
	s := &service{outbox: out}
	// snippet: guard
	guard, err := idempotency.New(pool, idempotency.Config{
		Schema:    schema,
		Principal: account, // whose a key is: say who was authenticated
		Logger:    log,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /refunds", guard.Middleware(http.HandlerFunc(s.refund)))
	mux.HandleFunc("GET /idempotent-routes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(guard.Routes()) // the client is gone
	})
	// end snippet
	return mux, nil
}

// account stands for what an API's authentication has found out before.
func account(r *http.Request) (string, error) {
	if id := r.Header.Get("Account"); id != "" {
		return id, nil
	}
	return "", errors.New("nobody is signed in")
}

// snippet: refund
func (s *service) refund(w http.ResponseWriter, r *http.Request) {
	var refund struct {
		Charge string
		Cents  int
	}
	if json.NewDecoder(r.Body).Decode(&refund) != nil || refund.Cents <= 0 {
		http.Error(w, "charge or cents are missing", http.StatusBadRequest) // nothing is kept: a corrected request may have the same key
		return
	}
	ctx := r.Context()
	tx := idempotency.Tx(ctx) // committed with the answer, or not at all
	var id int64
	err := tx.QueryRow(ctx, "insert into refund (charge, cents) values ($1, $2) returning id", refund.Charge, refund.Cents).Scan(&id)
	if err == nil {
		payload := fmt.Appendf(nil, `{"refund": %d, "cents": %d}`, id, refund.Cents)
		err = s.outbox.Write(ctx, tx, holdfast.Event{Topic: "refunds", Key: refund.Charge, Type: "refund.created", Payload: payload})
	}
	if err != nil {
		http.Error(w, "try again", http.StatusInternalServerError) // nothing is kept, and the key is free again
		return
	}
	w.Header().Set("Location", fmt.Sprintf("/refunds/%d", id))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"id": %d}`, id)
}

// end snippet
