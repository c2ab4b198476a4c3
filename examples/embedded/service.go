package main

import (
	"context"
	"errors"
	"fmt"
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
)

// service is an HTTP service with a relay inside.
type service struct {
	pool      *pgxpool.Pool
	outbox    *outbox.Outbox
	relay     *relay.Relay
	publisher *kafkago.Publisher // the relay's
	topic     string
	server    *http.Server

	published atomic.Int64 // events that Kafka acknowledged
	state     atomic.Value // of string: what /healthz says
	log       *slog.Logger
	said      func(stage string)

	drain time.Duration // how long requests may take to end once we stop
	close time.Duration // how long connections may take to come back to the pool
}

// The states of a service.
const (
	serving      = "serving"
	stopping     = "stopping"
	relayStopped = "the relay has stopped"
)

func newService(ctx context.Context, pool *pgxpool.Pool, brokers []string, schema, topic string, log *slog.Logger) (*service, error) {
	if err := holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{Schema: schema}); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, ordersTable); err != nil {
		return nil, err
	}
	s := &service{pool: pool, topic: topic, log: log, said: func(string) {}, drain: 8 * time.Second, close: 3 * time.Second}
	s.state.Store(serving)

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
	s.outbox, s.relay, s.publisher = box, r, publisher
	s.server = &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	return s, nil
}

// run serves on l until ctx is done, or a part fails, and then stops the parts in the order in
// which they need each other: requests need the relay's Wake and the pool, the relay needs the
// pool. Every stage has a limit, and the limits together (8 + 8 + 5 + 3 s) stay below the platform's
// grace period (30 s in Kubernetes). What is not published by then is in the outbox, and the next start
// publishes it.
func (s *service) run(ctx context.Context, l net.Listener) error {
	// The parts do not stop with ctx, but when it is their turn.
	requests, cutRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cutRequests()
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()

	s.server.BaseContext = func(net.Listener) context.Context { return requests }
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(l) }()
	var relayErr error
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		relayErr = s.relay.Run(relaying)
	}()

	var failure error
	select {
	case <-ctx.Done():
		s.state.Store(stopping)
	case err := <-served:
		failure = fmt.Errorf("serve: %w", err)
	case <-relayed:
		// The service could go on without: orders are safe in the outbox. But nobody would hear of them.
		s.state.Store(relayStopped)
		failure = fmt.Errorf("relay: %w", relayErr)
	}

	// 1. No new requests; those in progress may end. After the limit their contexts are cancelled, which
	//    rolls their transactions back, and their connections are closed.
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if err := s.server.Shutdown(draining); err != nil {
		cutRequests()
		s.server.Close()
		failure = errors.Join(failure, fmt.Errorf("requests took longer than %v to end and were cut off", s.drain))
	}
	s.said("stopped: requests")

	// 2. The relay finishes what is in progress, saves how far it got and hands its lanes to others.
	stopRelay()
	<-relayed           // within StopTimeout
	s.publisher.Close() // its connections to the brokers
	s.said("stopped: relay")

	// 3. The pool, last. Close waits for every connection that is out.
	closed := make(chan struct{})
	go func() {
		s.pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
		s.said("stopped: pool")
	case <-time.After(s.close):
		failure = errors.Join(failure, fmt.Errorf("%d connections were not given back within %v", s.pool.Stat().AcquiredConns(), s.close))
	}
	return failure
}
