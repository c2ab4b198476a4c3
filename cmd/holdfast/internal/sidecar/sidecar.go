// Package sidecar is the process of holdfast relay: a relay for each database, and what watches them.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
)

// Database is a database that the process relays.
type Database struct {
	Name   string
	URL    string       // "" leaves it to Postgres' own variables
	Config relay.Config // without Logger and Observer, which the Sidecar sets
}

// Sidecar runs the relays. Make it with New.
type Sidecar struct {
	logger   *slog.Logger
	relays   []*databaseRelay
	probes   probes
	registry *prometheus.Registry
	pools    []*pgxpool.Pool
	closing  []func() // publishers

	listener net.Listener // nil without Listen
	profiles bool
}

// New makes the relays, with pools of open. several says that log lines name their database. The error has every problem of their
// configuration.
func New(ctx context.Context, databases []Database, several bool, connection kafkago.Connection, logger *slog.Logger, open func(ctx context.Context, url string) (*pgxpool.Pool, error)) (*Sidecar, error) {
	s := &Sidecar{logger: logger, registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	var problems []error
	for i, d := range databases {
		log := logger
		if several {
			log = logger.With("database", d.Name)
		}
		publisher, err := kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
		if err == nil {
			s.closing = append(s.closing, publisher.Close)
		} else if i == 0 { // it is the same for all
			problems = append(problems, err)
		}
		one, err := s.relayOf(ctx, d, publisher, log, open)
		if err != nil && several {
			err = OfDatabase(d.Name, err)
		}
		problems = append(problems, err)
		s.relays = append(s.relays, one)
	}
	s.probes.relays = s.relays
	if err := errors.Join(problems...); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// OfDatabase says of each of the problems which database it is of.
func OfDatabase(name string, err error) error {
	head := "database " + name + ": "
	return errors.New(head + strings.ReplaceAll(err.Error(), "\n", "\n"+head))
}

// relayOf makes the relay of a database, with a pool of its own. Its publisher is its own, too: what one database waits for costs the
// others nothing.
func (s *Sidecar) relayOf(ctx context.Context, d Database, publisher *kafkago.Publisher, logger *slog.Logger, open func(context.Context, string) (*pgxpool.Pool, error)) (*databaseRelay, error) {
	pool, err := open(ctx, d.URL)
	if err != nil {
		return nil, err
	}
	s.pools = append(s.pools, pool)
	observer, err := s.observe(d, pool, logger)
	if err != nil {
		return nil, err
	}
	c := d.Config
	c.Logger, c.Observer = logger, observer
	one := &databaseRelay{
		name:   d.Name,
		logger: logger,
		make:   func() (*relay.Relay, error) { return relay.New(pool, publisher, c) },
	}
	return one, one.next()
}

// observe makes the metrics of a database, whose name each of them has as a label.
func (s *Sidecar) observe(d Database, pool *pgxpool.Pool, logger *slog.Logger) (relay.Observer, error) {
	collector := holdfastprometheus.New()
	observer, err := metrics.Relay(collector)
	if err != nil {
		return observer, err
	}
	claimed, released := observer.OnClaimed, observer.OnReleased
	observer.OnClaimed = func(lane int, epoch int64) {
		claimed(lane, epoch)
		logger.Info("lane claimed", "lane", lane, "epoch", epoch)
	}
	observer.OnReleased = func(lane int) {
		released(lane)
		logger.Info("lane released", "lane", lane)
	}
	if _, err := metrics.ObserveDatabase(collector, pool, metrics.DatabaseConfig{Schema: d.Config.Schema, Timeout: 3 * time.Second}); err != nil {
		return observer, err
	}
	if _, err := metrics.ObservePool(collector, "relay", pool); err != nil {
		return observer, err
	}
	return observer, prometheus.WrapRegistererWith(prometheus.Labels{"database": d.Name}, s.registry).Register(collector)
}

// Close closes publishers and pools. The relays have stopped.
func (s *Sidecar) Close() {
	for _, f := range s.closing {
		f()
	}
	for _, pool := range s.pools {
		pool.Close()
	}
}

// Reach asks whether the databases answer.
func (s *Sidecar) Reach(ctx context.Context, answers func(context.Context, *pgxpool.Pool) error) error {
	for _, pool := range s.pools {
		if err := answers(ctx, pool); err != nil {
			return err
		}
	}
	return nil
}

// Listen opens the address of the probes, with Go's profiles if profiles. Call it before Run: a process that cannot be watched does not start.
func (s *Sidecar) Listen(ctx context.Context, address string, profiles bool) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for probes and metrics: %w", err)
	}
	s.listener, s.profiles = listener, profiles
	s.logger.Info("listening", "address", listener.Addr().String())
	return nil
}

// Run runs all relays until ctx is done, or one that is alone ends. It stops in order:
//
//  1. /readyz fails.
//  2. The relays finish what is in progress and hand their lanes back. /livez, /readyz and /metrics still answer.
//  3. The listener closes.
func (s *Sidecar) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{
		Handler:           s.probes.handler(s.registry, s.profiles),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      90 * time.Second,
		MaxHeaderBytes:    16 << 10,
	} // A profile takes 30 s.
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
