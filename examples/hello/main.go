// Command hello writes an event, publishes it and handles it. It starts a Postgres and an in-process fake Kafka for itself, unless
// DATABASE_URL and KAFKA_BROKERS name servers of yours:
//
//	go run ./examples/hello
//
// snippet: hello
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	// A service has a pool, brokers and a topic already.
	on, err := servers.Start(ctx, servers.Config{DatabaseURL: os.Getenv("DATABASE_URL"), Brokers: os.Getenv("KAFKA_BROKERS"), Name: "hello", Keep: true})
	check(err)
	defer on.Stop()
	check(holdfast.Migrate(ctx, on.Pool, holdfast.SchemaConfig{Schema: on.Schema}))

	// 1. Write an event in a transaction. Your own changes belong in the same one.
	out, err := outbox.New(outbox.Config{Schema: on.Schema})
	check(err)
	check(pgx.BeginFunc(ctx, on.Pool, func(tx pgx.Tx) error {
		return out.Write(ctx, tx, holdfast.Event{Topic: on.Topic, Key: "world", Type: "greeted", Payload: []byte("hello")})
	}))

	// 2. Publish what was committed.
	kafka := kafkago.Connection{Brokers: on.Brokers}
	publisher, err := kafkago.NewPublisher(kafka, kafkago.PublisherConfig{})
	check(err)
	defer publisher.Close()
	r, err := relay.New(on.Pool, publisher, relay.Config{Schema: on.Schema})
	check(err)
	relayed := make(chan error, 1)
	go func() { relayed <- r.Run(ctx) }()

	// 3. Handle each event once, and stop.
	in, err := inbox.New(on.Pool, inbox.Config{Schema: on.Schema, Consumer: "greeter"})
	check(err)
	in.Handle("greeted", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		fmt.Printf("%s, %s\n", e.Payload, e.Key)
		stop() // a real consumer goes on
		return nil
	})
	source, err := kafkago.NewGroup(kafka, kafkago.GroupConfig{GroupID: on.Group, Topics: []string{on.Topic}})
	check(err)
	check(in.Consume(ctx, source))
	check(<-relayed)
}

// check ends the program. Unlike log.Fatal it runs what is deferred, which stops the servers.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// end snippet
