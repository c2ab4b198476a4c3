// Program subject is one part of the way of an event, in a process of its own, for the tests that end it at every
// failpoint: a producer, a relay, a consumer, or a person who replays dead letters. Built without the tag failpoints it
// runs just the same, and nothing happens to it.
//
// Each line of its standard input is an order for package failpoint. It stops in order at SIGTERM, and when its standard input ends: it cannot outlive its test.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Order is what the environment variable HOLDFAST_SUBJECT says, in JSON.
type Order struct {
	Role    string // "producer", "relay", "consumer" or "dlq"
	DSN     string
	Brokers []string
	Topics  []string

	Prefix     string        // of a producer's keys
	Keys, Each int           // how many keys it writes for, and events of each
	Idle       time.Duration // after which the database ends its transaction

	BatchSize, Attempts int // of a relay
	HoldKey             bool

	Batch, Tries int // of a consumer
}

// hangs is how long a process may take to stop before it says where it stands.
const hangs = 60 * time.Second

func main() {
	if len(os.Args) > 1 && os.Args[1] == "points" {
		points()
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "subject:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "subject: the end")
}

func run() error {
	var o Order
	if err := json.Unmarshal([]byte(os.Getenv("HOLDFAST_SUBJECT")), &o); err != nil {
		return fmt.Errorf("read HOLDFAST_SUBJECT: %w", err)
	}
	stopping, forget := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer forget()
	ctx, cancel := context.WithCancel(stopping) // A later signal changes nothing.
	defer cancel()
	go func() {
		for words := bufio.NewScanner(os.Stdin); words.Scan(); {
			err := order(words.Text())
			fmt.Fprintln(os.Stderr, "\nreport order", words.Text(), err)
		}
		cancel()
		time.Sleep(hangs)
		panic("it was told to stop and has not")
	}()
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return err
	}
	config.MaxConns = 10
	name := fmt.Sprint(o.Role, "/", os.Getpid()) // in the database, too: the oracles ask who changed a row, and whose it was
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("part", fmt.Sprint(o.Role, " ", os.Getpid()))
	switch o.Role {
	case "producer":
		return produce(ctx, pool, o)
	case "relay":
		return publish(ctx, pool, o, name, logger)
	case "consumer":
		return consume(ctx, pool, o, logger)
	case "dlq":
		return replay(ctx, pool)
	}
	return fmt.Errorf("the role is %q", o.Role)
}
