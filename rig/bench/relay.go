package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// codec is PublisherConfig's default, said here so that the other contestants compress alike.
const codec = kafka.Snappy

// newRelay makes the relay that is measured: pool, publisher and relay with their defaults. The observer only counts. The
// returned function closes the connections to the brokers.
func newRelay(pool *pgxpool.Pool, brokers []string, o relay.Observer) (*relay.Relay, func(), error) {
	return newRelayOn(pool, kafkago.Connection{Brokers: brokers}, o)
}

// newRelayOn is newRelay on another way to the brokers.
func newRelayOn(pool *pgxpool.Pool, connection kafkago.Connection, o relay.Observer) (*relay.Relay, func(), error) {
	publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{Compression: codec})
	if err != nil {
		return nil, nil, err
	}
	r, err := newRelayBy(pool, publisher, o)
	return r, publisher.Close, err
}

// newRelayBy is newRelay with another publisher.
func newRelayBy(pool *pgxpool.Pool, publisher relay.Publisher, o relay.Observer) (*relay.Relay, error) {
	// Warnings go to standard error: a relay that was disturbed is not worth measuring.
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return relay.New(pool, publisher, relay.Config{Observer: o, Logger: logger})
}

// relayDrain publishes the backlog of a database with a relay and returns events a second, from the call of Run to the
// last acknowledgement.
func (e *env) relayDrain(ctx context.Context, database string, events int) (float64, error) {
	return e.relaysDrain(ctx, database, 1, 0, events)
}

// relaysDrain is relayDrain with several relays, each with a pool of its own of so many connections; 0 is the default.
func (e *env) relaysDrain(ctx context.Context, database string, relays, conns, events int) (float64, error) {
	return e.drainWith(ctx, newRelay, database, relays, conns, events)
}

// newRelayFunc makes a relay, and says how to close its connections to the brokers.
type newRelayFunc func(pool *pgxpool.Pool, brokers []string, o relay.Observer) (*relay.Relay, func(), error)

// drainWith is relaysDrain of relays that newRelay makes.
func (e *env) drainWith(ctx context.Context, newRelay newRelayFunc, database string, relays, conns, events int) (float64, error) {
	var published atomic.Int64
	done := make(chan time.Time, 1)
	ended := make(chan error, relays)
	running, stop := context.WithCancel(ctx)
	defer stop()
	var all []*relay.Relay
	for range relays {
		pool, err := e.pool(ctx, database, conns)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		r, closeIdle, err := newRelay(pool, e.kafka.Brokers, relay.Observer{OnPublished: func(_ int, acknowledged []holdfast.Event) {
			got := int64(len(acknowledged))
			before := published.Add(got) - got
			if now := before + got; before < int64(events) && now >= int64(events) {
				done <- time.Now()
			}
		}})
		if err != nil {
			return 0, err
		}
		defer closeIdle()
		all = append(all, r)
	}
	began := time.Now()
	for _, r := range all {
		go func() { ended <- r.Run(running) }()
	}
	at, err := await(ctx, done, ended, published.Load, events)
	stop()
	if err != nil {
		return 0, err
	}
	for range all {
		err = errors.Join(err, <-ended)
	}
	return float64(events) / at.Sub(began).Seconds(), err
}
