// Command own is the program of docs/getting-started.md that has a module and servers of its own.
//
//	DATABASE_URL=postgres://… KAFKA_BROKERS=localhost:9092 go run ./examples/hello/own
//
// The topic greetings must exist.
//
// snippet: hello-own
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	check(holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}))

	// 1. Write an event in a transaction. Your own changes belong in the same one.
	check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "greetings", Key: "world", Type: "greeted", Payload: []byte("hello")})
	}))

	// 2. Publish what was committed.
	brokers := os.Getenv("KAFKA_BROKERS")
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: []string{brokers}}, kafkago.PublisherConfig{})
	check(err)
	defer publisher.Close()
	r, err := relay.New(pool, publisher, relay.Config{})
	check(err)
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(ctx) }()

	// 3. Handle each event once, and stop.
	in, err := inbox.New(pool, inbox.Config{Consumer: "greeter"})
	check(err)
	in.Handle("greeted", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fmt.Printf("%s, %s\n", e.Payload, e.Key)
		stop() // a real consumer goes on
		return nil
	})
	source, err := kafkago.NewGroup(kafkago.Connection{Brokers: []string{brokers}}, kafkago.GroupConfig{GroupID: "greeter", Topics: []string{"greetings"}})
	check(err)
	check(in.Consume(ctx, source))
	check(<-relayed)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// end snippet
