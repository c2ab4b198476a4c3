package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// A relay in the process that writes need not wait for its next look at the log.
func ExampleRelay_Wake() {
	ctx, stop := context.WithCancel(context.Background())
	pool := ordersOf(ctx)
	published := make(chan string)
	r, err := relay.New(pool, publisherFunc(func(e holdfast.Event) error {
		published <- e.Type
		return nil
	}), relay.Config{PollMax: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	stopped := make(chan error)
	go func() { stopped <- r.Run(ctx) }()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Write(ctx, tx, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "o-1"})
	})
	r.Wake() // after the commit
	fmt.Println(<-published, err)
	stop()
	fmt.Println(<-stopped)
	// Output:
	// order.placed <nil>
	// <nil>
}

// A record that the broker will never take is tried Retry.Attempts times and becomes a dead letter. The key goes on.
func Example_refusedRecord() {
	ctx, stop := context.WithCancel(context.Background())
	pool := ordersOf(ctx, "order.huge", "order.paid")
	p := publisherFunc(func(e holdfast.Event) error {
		if e.Type == "order.huge" {
			return &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultRecord, Err: errors.New("message too large")}
		}
		fmt.Println("published:", e.Type)
		defer stop()
		return nil
	})
	r, err := relay.New(pool, p, relay.Config{
		Retry:    retry.Policy{Attempts: 1},
		Logger:   slog.New(slog.NewTextHandler(io.Discard, nil)),
		Observer: relay.Observer{OnDead: func(d relay.DeadLettered) { fmt.Println("dead letter:", d.Event.Type, d.Err) }},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// dead letter: order.huge publish to topic orders: message too large
	// published: order.paid
	// <nil>
}

// A topic that is missing is waited for: no attempt is spent, nothing is lost.
func Example_missingTopic() {
	ctx, stop := context.WithCancel(context.Background())
	pool := ordersOf(ctx, "order.placed")
	created := false
	p := publisherFunc(func(e holdfast.Event) error {
		if !created {
			return &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultTopic, Err: errors.New("unknown topic")}
		}
		fmt.Println("published:", e.Type)
		defer stop()
		return nil
	})
	r, err := relay.New(pool, p, relay.Config{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Observer: relay.Observer{OnHeld: func(h relay.Held) {
			fmt.Println("held:", h.Fault, h.Err)
			created = true // by somebody
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// held: topic publish to topic orders: unknown topic
	// published: order.placed
	// <nil>
}

// A gauge shows what has been written and not published.
func ExampleRelay_Backlog() {
	ctx := context.Background()
	pool := ordersOf(ctx, "order.placed")
	r, err := relay.New(pool, printer{}, relay.Config{})
	if err != nil {
		log.Fatal(err)
	}
	b, err := r.Backlog(ctx) // of any relay, running or not
	fmt.Println("lanes:", b.Lanes, "parked:", b.Waiting, "alert:", b.Oldest > time.Minute, err)
	// Output: lanes: 1 parked: 0 alert: false <nil>
}
