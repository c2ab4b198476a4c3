package relay_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/outbox"
)

// ordersOf is a database whose log has an event of each of these types, all of one key.
func ordersOf(ctx context.Context, types ...string) *pgxpool.Pool {
	pool := exampledb.New()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, name := range types {
			if err := outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: name, Key: "o-1"}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	return pool
}

// publisherFunc is a relay.Publisher that sends one event after the other.
type publisherFunc func(e holdfast.Event) error

func (send publisherFunc) Publish(_ context.Context, events []holdfast.Event) []error {
	type queue struct{ topic, key string }
	errs, refused := make([]error, len(events)), map[queue]error{}
	for i, e := range events {
		of := queue{e.Topic, e.Key}
		if err := refused[of]; err != nil && e.Key != "" {
			errs[i] = fmt.Errorf("not sent after an earlier event of its key: %w", err)
		} else if errs[i] = send(e); errs[i] != nil {
			refused[of] = errs[i]
		}
	}
	return errs
}
