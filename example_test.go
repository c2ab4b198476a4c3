package holdfast_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

// publisherFunc is a relay.Publisher that is a function of one event.
type publisherFunc func(ctx context.Context, e holdfast.Event) error

func (f publisherFunc) Publish(ctx context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		errs[i] = f(ctx, e)
	}
	return errs
}

// One event from the transaction that writes it to the transaction that handles it. Here the relay hands it straight to
// the inbox; in production Kafka stands between them.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	pool := exampledb.New() // a *pgxpool.Pool, after holdfast.Migrate

	billing, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	billing.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fmt.Printf("invoice for %s: %s\n", e.Key, e.Payload)
		return nil
	})
	r, err := relay.New(pool, publisherFunc(func(ctx context.Context, e holdfast.Event) error {
		defer stop()
		_, err := billing.Receive(ctx, e)
		return err
	}), relay.Config{})
	if err != nil {
		log.Fatal(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "alice", Payload: []byte("12 EUR")})
	})
	fmt.Println("written:", err)
	fmt.Println("relay stopped:", r.Run(ctx))
	// Output:
	// written: <nil>
	// invoice for alice: 12 EUR
	// relay stopped: <nil>
}
