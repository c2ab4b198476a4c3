package dlq_test

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/retry"
)

// givenUp is a database with a dead letter of each of these payloads, which the consumer "billing" has refused.
func givenUp(payloads ...string) (*pgxpool.Pool, *dlq.DLQ) {
	pool := exampledb.New()
	in := billing(pool, func(string) error { return retry.Permanent(errors.New("unknown currency")) }, nil)
	for _, payload := range payloads {
		e := holdfast.Event{ID: payload, Source: "shop", Type: "order.placed", Topic: "orders", Key: "o-1", Payload: []byte(payload)}
		if _, err := in.Receive(context.Background(), e); err != nil {
			log.Fatal(err)
		}
	}
	d, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return pool, d
}

// billing is the consumer, with a handler of payloads. settled is called when an event has been handled.
func billing(pool *pgxpool.Pool, handle func(payload string) error, settled func()) *inbox.Inbox {
	in, err := inbox.New(pool, inbox.Config{
		Consumer: "billing",
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Observer: inbox.Observer{OnReceive: func(r inbox.Received) {
			if r.Outcome == inbox.Handled && settled != nil {
				settled()
			}
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { return handle(string(e.Payload)) })
	return in
}
