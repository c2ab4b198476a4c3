// Command orders is holdfast's quickstart: a shop that writes orders, a relay that publishes them,
// and a billing service that invoices each exactly once, whatever goes wrong in between.
//
//	go run ./examples/orders
//
// It starts a PostgreSQL and an in-process fake Kafka for itself. DATABASE_URL and KAFKA_BROKERS make
// it run on servers of yours, under names of its own that it removes afterwards.
//
// Read producer.go, relay.go and consumer.go for how holdfast is used, story.go for what happens
// to it here, and check.go for what must be true in the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the cleaning up

	err := run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL"), Brokers: os.Getenv("KAFKA_BROKERS")})
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "\norders:", err)
	if errors.Is(err, errInterrupted) {
		os.Exit(130) // as shells expect after Ctrl-C
	}
	os.Exit(1)
}

// config configures a run; the zero config starts its own servers.
type config struct {
	DatabaseURL, Brokers string

	// beforeCheck may break a promise, to see that the check finds it.
	beforeCheck func(context.Context, *story) error
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the
// servers.
func run(ctx context.Context, out io.Writer, c config) (err error) {
	begun := time.Now()
	s := newStory(out, c)
	defer func() {
		err = errors.Join(err, s.stop())
		s.page.end(err, time.Since(begun))
	}()
	first := "Two servers"
	if c.DatabaseURL == "" {
		first += " (PostgreSQL is downloaded if this machine has none)"
	}
	return s.tell(ctx, []chapter{
		{first, s.startServers},
		{"The shop takes orders", s.placeOrders},
		{"The relay publishes what was committed", s.publish},
		{"Billing writes the invoices", s.invoice},
		{"A relay crashes before it saved how far it was", s.redeliver},
		{"An order that cannot be invoiced", s.poison},
		{"The fix, and the dead letter replayed", s.replay},
		{"What must be true now, asked in SQL", s.check},
	})
}
