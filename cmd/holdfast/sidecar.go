package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
)

// sidecar is the process of holdfast relay: a relay for each database, and what watches them.
type sidecar struct {
	logger   *slog.Logger
	relays   []*databaseRelay
	probes   probes
	registry *prometheus.Registry
	pools    []*pgxpool.Pool
	closing  []func() // publishers

	listener net.Listener // nil without --listen
	profiles bool
}

// newSidecar makes the relays. The error has every problem of their configuration. Close it, also after an error.
func newSidecar(ctx context.Context, databases []database, connection kafkago.Connection, name string, several bool, logger *slog.Logger) (*sidecar, error) {
	s := &sidecar{logger: logger, registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	var problems []error
	for i, d := range databases {
		log := logger
		if several {
			log = logger.With("database", d.name)
		}
		publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
		if err == nil {
			s.closing = append(s.closing, publisher.Close)
		} else if i == 0 { // it is the same for all
			problems = append(problems, err)
		}
		one, err := s.relayOf(ctx, d, publisher, name, log)
		if err != nil && several {
			err = ofDatabase(d.name, err)
		}
		problems = append(problems, err)
		s.relays = append(s.relays, one)
	}
	s.probes.relays = s.relays
	return s, errors.Join(problems...)
}

// relayOf makes the relay of a database, with a pool of its own. Its publisher is its own, too: what one database waits for costs the
// others nothing.
func (s *sidecar) relayOf(ctx context.Context, d database, publisher *kafkago.Publisher, name string, logger *slog.Logger) (*databaseRelay, error) {
	pool, err := openPool(ctx, d.url)
	if err != nil {
		return nil, err
	}
	s.pools = append(s.pools, pool)
	observer, err := s.observe(d, pool, logger)
	if err != nil {
		return nil, err
	}
	one := &databaseRelay{name: d.name, logger: logger, make: func() (*relay.Relay, error) {
		return relay.New(pool, publisher, relay.Config{Schema: d.schema, Name: name, Lease: d.flags.Lease, BatchSize: d.flags.BatchSize, TenantSeparator: d.flags.Tenants, HoldKey: d.flags.HoldKey,
			DeadLetterTopic: d.flags.LetterTo, MemoryBudget: d.flags.MemoryBudget, Logger: logger, Observer: observer})
	}}
	return one, one.next()
}

// observe makes the metrics of a database, whose name each of them has as a label.
func (s *sidecar) observe(d database, pool *pgxpool.Pool, logger *slog.Logger) (relay.Observer, error) {
	collector := holdfastprometheus.New()
	observer, err := collector.Relay()
	if err != nil {
		return observer, err
	}
	claimed, released := observer.OnClaimed, observer.OnReleased
	observer.OnClaimed = func(c relay.Claimed) {
		claimed(c)
		logger.Info("lane claimed", "lane", c.Lane, "epoch", c.Epoch)
	}
	observer.OnReleased = func(r relay.Released) {
		released(r)
		logger.Info("lane released", "lane", r.Lane)
	}
	sampler, err := metrics.NewDatabase(pool, metrics.DatabaseConfig{Schema: d.schema, Timeout: 3 * time.Second})
	if err != nil {
		return observer, err
	}
	if _, err := collector.Database(sampler); err != nil {
		return observer, err
	}
	if _, err := collector.Pool("relay", pool); err != nil {
		return observer, err
	}
	return observer, prometheus.WrapRegistererWith(prometheus.Labels{"database": d.name}, s.registry).Register(collector)
}

// close closes publishers and pools. The relays have stopped.
func (s *sidecar) close() {
	for _, f := range s.closing {
		f()
	}
	for _, pool := range s.pools {
		pool.Close()
	}
}

// reach asks whether the databases answer.
func (s *sidecar) reach(ctx context.Context) error {
	for _, pool := range s.pools {
		if err := answers(ctx, pool); err != nil {
			return err
		}
	}
	return nil
}

// listen opens the address of the probes. It is called before the relays run: a process that cannot be watched does not start.
func (s *sidecar) listen(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for probes and metrics: %w", err)
	}
	s.listener = listener
	s.logger.Info("listening", "address", listener.Addr().String())
	return nil
}

// run runs all relays until ctx is done, or one that is alone ends. It stops in order:
//
//  1. /readyz fails.
//  2. The relays finish what is in progress and hand their lanes back. /livez, /readyz and /metrics still answer.
//  3. The listener closes.
func (s *sidecar) run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{Handler: s.probes.handler(s.registry, s.profiles), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 90 * time.Second, MaxHeaderBytes: 16 << 10} // A profile takes 30 s.
	served := make(chan error, 1)
	if s.listener != nil {
		go func() { served <- server.Serve(s.listener) }()
	}
	ended := make(chan error, len(s.relays))
	for _, d := range s.relays {
		go func() {
			if len(s.relays) == 1 {
				ended <- d.run(work)
				return
			}
			ended <- d.runAgain(work)
		}()
	}
	running := len(s.relays)
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		running--
	case err = <-served:
		err = fmt.Errorf("answer probes: %w", err)
	}
	s.probes.stopping.Store(true)
	stop()
	for ; running > 0; running-- {
		err = errors.Join(err, <-ended)
	}
	if err == nil {
		s.logger.Info("relay stopped")
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = server.Shutdown(last)
	return err
}
