// Command embedded is an HTTP service with the relay inside: POST /orders writes an order and its
// event in one transaction, and a relay in the same process publishes it.
//
//	go run ./examples/embedded          # serves until Ctrl-C
//	go run ./examples/embedded -demo    # sends itself some requests, and ends
//
// It starts a PostgreSQL and an in-process fake Kafka for itself unless DATABASE_URL and KAFKA_BROKERS
// name servers of yours.
//
// Read service.go for the parts, orders.go for the request, and package service for the order in which the parts stop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/examples/internal/servers"
)

// config configures a run.
type config struct {
	DatabaseURL, Brokers string
	Name                 string // of the schemas and the topic
	Listen               string
	Demo                 bool
}

func main() {
	c := config{DatabaseURL: os.Getenv("DATABASE_URL"), Brokers: os.Getenv("KAFKA_BROKERS")}
	flag.StringVar(&c.Listen, "listen", "127.0.0.1:8080", "address to serve on")
	flag.StringVar(&c.Name, "name", "embedded", "name of the schema, and beginning of the topic's")
	flag.BoolVar(&c.Demo, "demo", false, "send some requests, show what became of them, and end")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal does not wait
	if err := run(ctx, os.Stdout, c); err != nil {
		fmt.Fprintln(os.Stderr, "embedded:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done, or the demo is over.
func run(ctx context.Context, out io.Writer, c config) (err error) {
	if c.Demo {
		// A port and names of its own; what it makes is removed.
		c.Listen, c.Name = "127.0.0.1:0", servers.NewName("demo")
	}
	on, err := servers.Start(ctx, servers.Config{DatabaseURL: c.DatabaseURL, Brokers: c.Brokers, Name: c.Name, Keep: !c.Demo})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.Stop()) }()

	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	steps := slog.New(slog.NewTextHandler(out, nil))
	s, err := newShop(ctx, on.Pool, on.Brokers, on.Schema, on.Topic, log, steps)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n%s\nserving on http://%s\n", on.AboutPostgres, on.AboutKafka, listener.Addr())
	if c.Demo {
		return s.demo(ctx, listener, out)
	}
	fmt.Fprintf(out, "try: curl -d '{\"customer\":\"ann\",\"cents\":1200}' http://%s/orders\n", listener.Addr())
	return s.run(ctx, listener)
}
