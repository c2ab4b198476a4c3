package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// The order and its event commit together.
func ExampleOutbox_Write() {
	ctx, pool := context.Background(), shop()
	o, err := outbox.New(outbox.Config{Source: "shop"})
	if err != nil {
		log.Fatal(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into orders values ('o-1', 1200)"); err != nil {
			return err
		}
		return o.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "o-1", Payload: []byte("1200")})
	})
	fmt.Println(err)
	printLog(ctx, pool)
	// Output:
	// <nil>
	// order.placed o-1 1200
}

// An event whose transaction rolls back was never written.
func ExampleOutbox_Write_rollback() {
	ctx, pool := context.Background(), shop()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "o-1"}); err != nil {
			return err
		}
		return errors.New("card declined")
	})
	fmt.Println(err)
	printLog(ctx, pool) // nothing
	// Output:
	// card declined
}

// A batch of events costs one round trip.
func ExampleWrite() {
	ctx, pool := context.Background(), shop()
	events := []holdfast.Event{
		{Topic: "orders", Type: "order.placed", Key: "o-1", Payload: []byte("1200")},
		{Topic: "orders", Type: "order.placed", Key: "o-2", Payload: []byte("800")},
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, events...)
	})
	fmt.Println(err)
	printLog(ctx, pool)
	// Output:
	// <nil>
	// order.placed o-1 1200
	// order.placed o-2 800
}

// A nil payload deletes the key from a compacted topic.
func ExampleWrite_tombstone() {
	ctx, pool := context.Background(), shop()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "customers", Type: "customer.erased", Key: "alice", Payload: nil})
	})
	fmt.Println(err)
	printLog(ctx, pool)
	// Output:
	// <nil>
	// customer.erased alice tombstone
}

// Headers become Kafka record headers.
func ExampleWrite_headers() {
	ctx, pool := context.Background(), shop()
	var tenant string
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := outbox.Write(ctx, tx, holdfast.Event{
			Topic: "orders", Type: "order.placed", Key: "o-1",
			Headers: map[string]string{"tenant": "acme"},
		}); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "select headers->>'tenant' from holdfast.event").Scan(&tenant)
	})
	fmt.Println(tenant, err)
	// Output: acme <nil>
}

// A scheduled event waits in a table of its own until its time has come.
func ExampleWrite_scheduled() {
	ctx, pool := context.Background(), shop()
	reminder := holdfast.Event{Topic: "mail", Type: "payment.reminder", Key: "o-1", NotBefore: time.Now().Add(72 * time.Hour)}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, reminder)
	})
	fmt.Println(err)

	var scheduled string
	err = pool.QueryRow(ctx, "select type from holdfast.scheduled where due_at > now() + interval '2 days'").Scan(&scheduled)
	fmt.Println(scheduled, err)
	// Output:
	// <nil>
	// payment.reminder <nil>
}

// An event outside the limits is refused before anything is sent to Postgres: the transaction can go on without it.
func ExampleLimitError() {
	ctx, pool := context.Background(), shop()
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := outbox.Write(ctx, tx, holdfast.Event{Topic: "all orders", Type: "order.placed"})
		if limit := (*outbox.LimitError)(nil); errors.As(err, &limit) {
			fmt.Printf("event %d, %s %s: %s\n", limit.Index, limit.Field, limit.Value, limit.Rule)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// event 0, topic "all orders": it must be letters, digits, ".", "_" and "-", and not "." or ".." (Kafka)
	// <nil>
}
