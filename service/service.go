// Package service runs the parts of holdfast that a program has, answers its probes, measures its database, and stops the parts in the
// order in which they need each other.
//
//	s := &service.Service{Pool: pool, Guard: guard, Relay: r, CloseFuncs: []func(){publisher.Close}}
//	s.Consumers = []service.Consumer{{Inbox: in, Source: group}}
//	routes.Handle("/livez", s.Probes())
//	routes.Handle("/readyz", s.Probes())
//	s.Server = &http.Server{Addr: ":8080", Handler: routes}
//	return s.Run(ctx)
//
// Every part can be left out, or be run by your own code beside it.
package service

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

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/metrics"
	"github.com/holdfast-go/holdfast/relay"
)

// Service is the parts of a program. Set its fields before Run, and do not change them afterwards.
//
// All parts run until the context of Run ends, or until one of them returns: then all stop, and Probes says that the program is not
// ready. They stop in this order, each within a time of its own:
//
//  1. Server, Consumers, Guard and RunFuncs, at the same time: they do not need each other.
//  2. Relay. It goes on until the log is read, for at most a second, so that what the others wrote at the end is published. Then it saves how
//     far it got, and hands its lanes to others.
//  3. CloseFuncs, in their order, for what the parts have used. Then Pool.
//
// Nothing is lost when a step takes too long, or when the process is killed: what was not published is in the log, and what was not
// committed is handled again. docs/guides/shutdown.md says how long each step takes with the defaults.
type Service struct {
	// Pool is what the parts work on. It is closed last. Required.
	Pool *pgxpool.Pool

	// Server takes requests. While it stops, requests in progress may end for DrainTimeout. Then their contexts end, which rolls back
	// what they did not commit, and their connections are closed. Run sets BaseContext for that, around the one that it finds. Defaults to
	// none.
	Server *http.Server

	// ServeFunc makes Server serve, until Server.Shutdown is called. Defaults to Server.ListenAndServe. Set it for TLS, or for a
	// listener that you have.
	ServeFunc func(*http.Server) error

	// DrainTimeout is how long requests in progress may take to end. Defaults to 8 s.
	DrainTimeout time.Duration

	// Consumers handle events. Defaults to none.
	Consumers []Consumer

	// Guard removes expired keys, and completes abandoned requests. Defaults to none.
	Guard *idempotency.Guard

	// RunFuncs are loops of your own that may write events: each blocks until its context ends. Defaults to none.
	RunFuncs []func(ctx context.Context) error

	// Relay publishes. Defaults to none: then it runs elsewhere.
	Relay *relay.Relay

	// CloseFuncs are called when all parts have ended, in their order: for example the Close of the relay's publisher. Defaults to none.
	CloseFuncs []func()

	// CloseTimeout is how long Run waits for Pool to get all of its connections back. Defaults to 3 s.
	CloseTimeout time.Duration

	// Meter measures the database and the pool, as metrics.ObserveDatabase and metrics.ObservePool do. The parts have Observers of
	// their own: metrics.All makes them. Defaults to none.
	Meter metrics.Meter

	// Database is how the database is measured. Its EndsFunc adds the lag of consumers.
	Database metrics.DatabaseConfig

	// Logger says at info how the service stops. Defaults to slog.Default().
	Logger *slog.Logger

	running, stopping atomic.Bool
}

// Consumer is an inbox, and where its events come from.
type Consumer struct {
	Inbox  *inbox.Inbox
	Source inbox.Source // nil for an inbox that only gets webhooks, or what Receive and Store are called with
}

// name is what probes, errors and the log call a consumer.
func (c Consumer) name() string { return "consumer " + c.Inbox.Config().Consumer }

// Bounds of flush.
const (
	flushTimeout = time.Second
	flushEvery   = 50 * time.Millisecond
)

// part is what Run runs.
type part struct {
	name  string
	run   func(ctx context.Context) error
	ended chan struct{}
	err   error // valid once ended is closed
}

// validate lists every problem.
func (s *Service) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if s.Pool == nil {
		bad("pool is nil: it must be the pool that the parts work on")
	}
	if s.Server == nil && len(s.Consumers) == 0 && s.Guard == nil && len(s.RunFuncs) == 0 && s.Relay == nil {
		bad("there is no part: set Server, Consumers, Guard, RunFuncs or Relay")
	}
	if s.Server == nil && s.ServeFunc != nil {
		bad("serve func is set, but server is nil")
	}
	for i, c := range s.Consumers {
		if c.Inbox == nil {
			bad("consumers[%d].inbox is nil", i)
		}
	}
	for i, run := range s.RunFuncs {
		if run == nil {
			bad("run funcs[%d] is nil", i)
		}
	}
	for i, f := range s.CloseFuncs {
		if f == nil {
			bad("close funcs[%d] is nil", i)
		}
	}
	if s.DrainTimeout < 0 {
		bad("drain timeout is %v: it must be positive, or 0 for the default", s.DrainTimeout)
	}
	if s.CloseTimeout < 0 {
		bad("close timeout is %v: it must be positive, or 0 for the default", s.CloseTimeout)
	}
	return errors.Join(problems...)
}

// Run runs the parts until ctx ends, or one of them returns, stops the others in order, and returns after all have ended: nil after
// ctx has ended and every part has stopped in time, otherwise what went wrong, by part. An error about the Service itself comes at once, and
// lists every problem of it; nothing has run then, and nothing is closed. Call Run once.
//
// Run knows nothing of signals. signal.NotifyContext makes a context that ends with them.
func (s *Service) Run(ctx context.Context) error {
	if err := s.validate(); err != nil {
		return err
	}
	if s.running.Swap(true) {
		return errors.New("the service has been run already: make another one")
	}
	unobserve, err := s.observe()
	if err != nil {
		return err
	}

	// The parts do not stop with ctx, but when it is their turn.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	over, end := context.WithCancel(ctx)
	defer end()
	start := func(ctx context.Context, name string, run func(context.Context) error) *part {
		p := &part{name: name, run: run, ended: make(chan struct{})}
		go func() {
			defer close(p.ended)
			defer end()
			if err := p.run(ctx); err != nil {
				p.err = fmt.Errorf("%s: %w", p.name, err)
			}
		}()
		return p
	}
	var first []*part
	if s.Server != nil {
		first = append(first, start(work, "requests", s.serve))
	}
	for _, c := range s.Consumers {
		run := c.Inbox.Run
		if c.Source != nil {
			run = func(ctx context.Context) error { return c.Inbox.Consume(ctx, c.Source) }
		}
		first = append(first, start(work, c.name(), run))
	}
	if s.Guard != nil {
		first = append(first, start(work, "guard", s.Guard.Run))
	}
	for i, run := range s.RunFuncs {
		first = append(first, start(work, fmt.Sprintf("run funcs[%d]", i), run))
	}
	var last []*part
	if s.Relay != nil {
		last = append(last, start(relaying, "relay", s.Relay.Run))
	}

	<-over.Done()
	s.stopping.Store(true)
	stopWork()
	err = s.await(first)
	s.flush(ctx, last)
	stopRelay()
	err = errors.Join(err, s.await(last), unobserve())
	for _, f := range s.CloseFuncs {
		f()
	}
	return errors.Join(err, s.closePool())
}

// flush waits until no relay has anything left to read, for flushTimeout. Who writes without a break, elsewhere, may keep it from that, and
// so may a broker that is away: then another relay reads on, or the next start.
func (s *Service) flush(ctx context.Context, relays []*part) {
	if len(relays) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for s.Relay.Wake(); ; {
		if b, err := s.Relay.Backlog(limited); err != nil || b.Lanes == 0 {
			return
		}
		select {
		case <-limited.Done():
			return
		case <-relays[0].ended:
			return
		case <-ticker.C:
		}
	}
}

// await waits until parts have ended, says so of each, and returns their errors.
func (s *Service) await(parts []*part) (err error) {
	began := time.Now()
	for _, p := range parts {
		<-p.ended
		s.logger().Info("part stopped", "part", p.name, "took", time.Since(began).Round(time.Millisecond))
		err = errors.Join(err, p.err)
	}
	return err
}

// serve serves until ctx ends, and then lets requests end.
func (s *Service) serve(ctx context.Context) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut() // those that are left at the end
	base := s.Server.BaseContext
	s.Server.BaseContext = func(l net.Listener) context.Context {
		if base == nil {
			return requests
		}
		of, cancel := context.WithCancel(base(l))
		context.AfterFunc(requests, cancel)
		return of
	}
	serve := s.ServeFunc
	if serve == nil {
		serve = (*http.Server).ListenAndServe
	}
	served := make(chan error, 1)
	go func() { served <- serve(s.Server) }()
	select {
	case err := <-served: // it cannot listen, for example
		if errors.Is(err, http.ErrServerClosed) {
			return nil // your code has stopped it
		}
		return err
	case <-ctx.Done():
	}
	limit := orDefault(s.DrainTimeout, 8*time.Second)
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := s.Server.Shutdown(draining); err != nil {
		_ = s.Server.Close()
		return fmt.Errorf("some took longer than %v to end, and were cut off", limit)
	}
	return nil
}

// observe measures the database and the pool, if there is a Meter.
func (s *Service) observe() (stop func() error, err error) {
	if s.Meter == nil {
		return func() error { return nil }, nil
	}
	stopDatabase, err := metrics.ObserveDatabase(s.Meter, s.Pool, s.Database)
	if err != nil {
		return nil, fmt.Errorf("measure the database: %w", err)
	}
	stopPool, err := metrics.ObservePool(s.Meter, "service", s.Pool)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("measure the pool: %w", err), stopDatabase())
	}
	return func() error { return errors.Join(stopDatabase(), stopPool()) }, nil
}

// closePool waits until connections are back, for CloseTimeout.
func (s *Service) closePool() error {
	began, closed, limit := time.Now(), make(chan struct{}), orDefault(s.CloseTimeout, 3*time.Second)
	go func() {
		s.Pool.Close()
		close(closed)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closed:
		s.logger().Info("part stopped", "part", "pool", "took", time.Since(began).Round(time.Millisecond))
		return nil
	case <-timer.C:
		return fmt.Errorf("pool: %d connections were not given back within %v", s.Pool.Stat().AcquiredConns(), limit)
	}
}

func (s *Service) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.Default()
	}
	return s.Logger
}

func orDefault(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return d
}
