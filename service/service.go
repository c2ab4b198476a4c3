// Package service runs the parts of holdfast that a program has, answers its probes, measures its database, and stops the parts in the
// order in which they need each other.
//
//	s := &service.Service{Pool: pool, Guard: guard, Relay: r, CloseFuncs: []func(){publisher.Close, pool.Close}}
//	s.Consumers = []service.Consumer{{Inbox: in, Source: group}}
//	routes.Handle("/livez", s.Probes())
//	routes.Handle("/readyz", s.Probes())
//	s.Server = &http.Server{Addr: ":8080", Handler: routes}
//	return s.Run(ctx)
//
// Every part can be left out. What you run yourself on the same pool belongs into RunFuncs, or ends before Run closes the pool.
package service

import (
	"cmp"
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
// All parts run until the context of Run ends or one of them fails. Then all stop, in this order:
//
//  1. Server, Consumers, Guard and RunFuncs, at the same time: they do not need each other.
//  2. Relay. It goes on until the log is read, for at most a second, so that what the others wrote at the end is published. Then it saves how
//     far it got, and hands its lanes to others.
//  3. CloseFuncs, in their order, for what the parts have used.
//
// Nothing is lost when the process is killed before: what was not published is in the log, and what was not committed is handled again.
// docs/guides/shutdown.md says how long each step takes with the defaults.
type Service struct {
	// Pool is what probes look at, and what Meter measures. Required.
	Pool *pgxpool.Pool

	// Server takes requests. While it stops, requests in progress may end for DrainTimeout. Then their contexts end, which rolls back
	// what they did not commit, and their connections are closed. Run sets BaseContext for that, around the one that it finds. As with
	// http.Server.Shutdown, a connection that a handler has taken (Hijack) is not waited for: its context ends when all others have. Defaults
	// to none.
	Server *http.Server

	// ServeFunc makes Server serve, until Server.Shutdown is called. Defaults to Server.ListenAndServe. Set it for TLS, or for a
	// listener that you have.
	ServeFunc func(*http.Server) error

	// DrainTimeout is how long requests in progress may take to end. Defaults to 8 s.
	DrainTimeout time.Duration

	// Consumers handle events. Each needs an Inbox with a Consumer of its own. Defaults to none.
	Consumers []Consumer

	// Guard removes expired keys, and completes abandoned requests. Defaults to none.
	Guard *idempotency.Guard

	// RunFuncs are your own: loops that may write events, each until its context ends. One that returns nil before has done its work; one
	// that returns an error ends the service. Defaults to none.
	RunFuncs []func(ctx context.Context) error

	// Relay publishes. Defaults to none: then it runs elsewhere.
	Relay *relay.Relay

	// CloseFuncs are called when all parts have ended, one after the other: the Close of the relay's publisher, and that of the pool. Defaults
	// to none.
	CloseFuncs []func()

	// CloseTimeout is how long CloseFuncs may take, together. Defaults to 3 s.
	CloseTimeout time.Duration

	// Meter measures the database and the pool while the service runs, as metrics.ObserveDatabase and metrics.ObservePool do. One process that
	// has no relay should measure the database too: it sees when no relay runs. The parts have Observers of their own: metrics.All
	// makes them. Defaults to none.
	Meter metrics.Meter

	// Database is how the database is measured. Its EndsFunc adds the lag of consumers.
	Database metrics.DatabaseConfig

	// Logger says at info how the service stops, and warns of a part that takes long. Defaults to slog.Default().
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
	names := map[string]bool{}
	for i, c := range s.Consumers {
		if c.Inbox == nil {
			bad("consumers[%d].inbox is nil", i)
			continue
		}
		if names[c.name()] {
			bad("consumers[%d].inbox has the name %q, as another one: each needs a Consumer of its own", i, c.Inbox.Config().Consumer)
		}
		names[c.name()] = true
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

// Run runs the parts until ctx ends or one of them fails, stops them in order, and returns after all have ended: nil if ctx has ended and
// all stopped as they should, otherwise what went wrong, by part. A part that ends by itself, other than a RunFunc, ends the others too. A part
// that does not end when its context does keeps Run from returning; the log names it. An error about the Service itself comes at once, and
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
	work, relaying := newStage(ctx), newStage(ctx)
	defer work.stop()
	defer relaying.stop()
	over, end := context.WithCancelCause(ctx)
	defer end(nil)
	fails := func(name string, _ error) { end(errors.New(name + " has ended")) }
	if s.Relay != nil {
		relaying.start("relay", s.Relay.Run, fails)
	}
	if s.Guard != nil {
		work.start("guard", s.Guard.Run, fails)
	}
	for _, c := range s.Consumers {
		run := c.Inbox.Run
		if c.Source != nil {
			run = func(ctx context.Context) error { return c.Inbox.Consume(ctx, c.Source) }
		}
		work.start(c.name(), run, fails)
	}
	if s.Server != nil {
		serve := func(ctx context.Context) error { return s.serve(ctx, func() { fails("requests", nil) }) }
		work.start("requests", serve, fails)
	}
	alone := len(work.parts)+len(relaying.parts) == 0
	var done atomic.Int64
	for i, run := range s.RunFuncs {
		work.start(fmt.Sprintf("run funcs[%d]", i), run, func(name string, err error) {
			if n := done.Add(1); err != nil || alone && n == int64(len(s.RunFuncs)) {
				fails(name, err)
			}
		})
	}

	<-over.Done()
	s.logger().Info("service stops", "because", context.Cause(over))
	s.stopping.Store(true)
	work.stop()
	err = work.await(s.logger())
	if s.Relay != nil {
		s.flush(ctx)
	}
	relaying.stop()
	err = errors.Join(err, relaying.await(s.logger()), unobserve())
	return errors.Join(err, s.close())
}

// flush waits until no relay has anything left to read, for flushTimeout. Who writes without a break, elsewhere, may keep it from that, and
// so may a broker that is away: then another relay reads on, or the next start.
func (s *Service) flush(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for s.Relay.Wake(); s.Relay.Health(limited).Live; {
		if b, err := s.Relay.Backlog(limited); err != nil || b.Lanes == 0 {
			return
		}
		select {
		case <-limited.Done():
			return
		case <-ticker.C:
		}
	}
}

// serve serves until ctx ends, and then lets requests end. ended is called when the server has ended by itself.
func (s *Service) serve(ctx context.Context, ended func()) error {
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
	var failure error
	select {
	case failure = <-served:
		served = nil // it cannot listen, or your code has called Shutdown: what it has taken may end
		ended()
	case <-ctx.Done():
	}
	limit := cmp.Or(s.DrainTimeout, 8*time.Second)
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := s.Server.Shutdown(draining); err != nil {
		_ = s.Server.Close()
		return fmt.Errorf("some took longer than %v to end, and were cut off", limit)
	}
	if served != nil {
		failure = <-served
	}
	if errors.Is(failure, http.ErrServerClosed) {
		return nil
	}
	return failure
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

// close calls CloseFuncs, and waits for CloseTimeout.
func (s *Service) close() error {
	var at atomic.Int64
	closed, limit := make(chan struct{}), cmp.Or(s.CloseTimeout, 3*time.Second)
	go func() {
		for i, f := range s.CloseFuncs {
			at.Store(int64(i))
			f()
		}
		close(closed)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closed:
		return nil
	case <-timer.C:
		return fmt.Errorf("close funcs[%d] has not returned within %v; %d connections of the pool are in use", at.Load(), limit, s.Pool.Stat().AcquiredConns())
	}
}

func (s *Service) logger() *slog.Logger { return cmp.Or(s.Logger, slog.Default()) }
