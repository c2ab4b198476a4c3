package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/service"
)

// shop is an HTTP service with a relay inside.
type shop struct {
	pool   *pgxpool.Pool
	outbox *outbox.Outbox
	relay  *relay.Relay
	topic  string
	log    *slog.Logger

	service   *service.Service // runs and stops server and relay
	published atomic.Int64     // events that Kafka acknowledged
}

// newShop makes the shop. log is for what goes wrong, and steps for how it stops.
func newShop(ctx context.Context, pool *pgxpool.Pool, brokers []string, schema, topic string, log, steps *slog.Logger) (*shop, error) {
	if err := holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{Schema: schema}); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, ordersTable); err != nil {
		return nil, err
	}
	s := &shop{pool: pool, topic: topic, log: log}
	box, err := outbox.New(outbox.Config{Schema: schema, Source: "shop"})
	if err != nil {
		return nil, err
	}
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: brokers}, kafkago.PublisherConfig{ProduceTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	r, err := relay.New(pool, publisher, relay.Config{
		Schema:      schema,
		StopTimeout: 8 * time.Second, // above the publisher's, which may be added to it
		Observer: relay.Observer{OnPublished: func(_ int, events []holdfast.Event) {
			s.published.Add(int64(len(events)))
		}},
		Logger: log,
	})
	if err != nil {
		return nil, err
	}
	s.outbox, s.relay = box, r

	// The limits together (8 + 1 + 8 + 5 + 3 s) stay below the platform's grace period (30 s in Kubernetes). What is not published by then
	// is in the outbox, and the next start publishes it.
	s.service = &service.Service{
		Pool: pool, Relay: r, CloseFuncs: []func(){publisher.Close, pool.Close}, DrainTimeout: 8 * time.Second, CloseTimeout: 3 * time.Second, Logger: steps,
	}
	s.service.Server = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	return s, nil
}

// run serves on l until ctx is done, or a part fails.
func (s *shop) run(ctx context.Context, l net.Listener) error {
	s.service.ServeFunc = func(server *http.Server) error { return server.Serve(l) }
	return s.service.Run(ctx)
}
