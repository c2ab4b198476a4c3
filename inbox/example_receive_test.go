package inbox_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

// What the handler writes and the record that the event was handled are one commit: a redelivery runs nothing.
func ExampleInbox_Handle() {
	ctx, pool := context.Background(), newPool()
	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fmt.Println("invoice for", e.Key)
		_, err := tx.Exec(ctx, "insert into invoice values ($1, $2)", e.Key, string(e.Payload))
		return err
	})
	for range 2 {
		fmt.Println(in.Receive(ctx, placed))
	}
	// Output:
	// invoice for o-1
	// handled <nil>
	// duplicate <nil>
}

// What has arrived of a partition is handled in one transaction, up to BatchSize events.
func ExampleInbox_HandleBatch() {
	ctx, stop := context.WithCancel(context.Background())
	in, err := inbox.New(newPool(), inbox.Config{Consumer: "billing", BatchSize: 100, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		defer stop() // a service goes on
		invoices := &pgx.Batch{}
		for _, e := range events {
			invoices.Queue("insert into invoice values ($1, $2)", e.ID, string(e.Payload))
		}
		fmt.Println(len(events), "invoices in one transaction")
		return tx.SendBatch(ctx, invoices).Close()
	})
	fmt.Println(in.Consume(ctx, orders("1200", "950", "4000")))
	// Output:
	// 3 invoices in one transaction
	// <nil>
}

// An id that comes again with another payload is not handled: a person has to look at it.
func ExampleInbox_Receive_conflict() {
	ctx, pool := context.Background(), newPool()
	in := billing(pool, inbox.Observer{})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })

	fmt.Println(in.Receive(ctx, placed))
	other := placed
	other.Payload = []byte("1")
	fmt.Println(in.Receive(ctx, other))
	// Output:
	// handled <nil>
	// conflict <nil>
}

// ReceiveTx handles an event in the caller's transaction: nothing of it stays if that rolls back.
func ExampleInbox_ReceiveTx() {
	ctx, pool := context.Background(), newPool()
	in := billing(pool, inbox.Observer{})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })

	for range 2 {
		tx, err := pool.Begin(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(in.ReceiveTx(ctx, tx, placed))
		fmt.Println(tx.Rollback(ctx))
	}
	// Output:
	// handled <nil>
	// <nil>
	// handled <nil>
	// <nil>
}

// Store takes the event now. Run, on this node or another, hands it to its handler later.
func ExampleInbox_StoreTx() {
	ctx, stop := context.WithCancel(context.Background())
	pool := newPool()
	in := billing(pool, inbox.Observer{})
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		defer stop()
		fmt.Println("handler runs")
		return nil
	})
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		outcome, err := in.StoreTx(ctx, tx, placed)
		fmt.Println(outcome)
		return err
	})
	fmt.Println("committed:", err)
	fmt.Println(in.Run(ctx))
	// Output:
	// stored
	// committed: <nil>
	// handler runs
	// <nil>
}

// A type that no node handles is skipped, unless the inbox is to keep it or to make it a dead letter.
func Example_unknownTypes() {
	ctx, pool := context.Background(), newPool()
	for _, unknown := range []inbox.Unknown{inbox.UnknownSkip, inbox.UnknownStore, inbox.UnknownDead} {
		in, err := inbox.New(pool, inbox.Config{Consumer: "billing-" + string(unknown), UnknownType: unknown})
		if err != nil {
			log.Fatal(err)
		}
		in.Handle("order.paid", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
		fmt.Println(in.Receive(ctx, placed))
	}
	// Output:
	// skipped <nil>
	// stored <nil>
	// dead <nil>
}

// Events that can overtake each other carry a version, and the handler does not go back.
func ExampleInbox_Watermark() {
	ctx, pool := context.Background(), newPool()
	in := billing(pool, inbox.Observer{})
	in.Handle("price.changed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		version := int64(len(e.Payload)) // in truth a field of the payload
		fresh, err := in.Watermark(ctx, tx, "product/"+e.Key, version)
		if err != nil {
			return err
		}
		fmt.Println("version", version, "fresh:", fresh)
		return nil // write the price only if fresh
	})
	for _, payload := range []string{"**", "*", "***"} {
		e := holdfast.Event{ID: payload, Type: "price.changed", Topic: "prices", Key: "p-1", Payload: []byte(payload)}
		if _, err := in.Receive(ctx, e); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// version 2 fresh: true
	// version 1 fresh: false
	// version 3 fresh: true
}

// A new consumer catches up with what the topics hold now, and the call returns.
func ExampleInbox_ConsumeUntil() {
	in, err := inbox.New(newPool(), inbox.Config{Consumer: "read-model-2", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into invoice values ($1, $2)", e.ID, string(e.Payload))
		return err
	})
	done, err := in.ConsumeUntil(context.Background(), orders("1200", "950", "4000"), inbox.Until{})
	fmt.Println(done.Done, "done,", done.Left, "left", err)
	// Output:
	// 3 done, 0 left <nil>
}
