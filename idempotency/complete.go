package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file completes requests that were begun, have no answer, and that no client repeats (Route.Complete).

// abandonedRequest is one such request as it was stored.
type abandonedRequest struct {
	kept.Request
	run         int64
	key         store.Key
	fingerprint []byte
	attempt     int   // number of the last attempt
	unreadable  error // set if the stored request cannot be read
}

// complete looks for abandoned requests until ctx is done, and ends Run if it never can again.
func (g *Guard) complete(ctx context.Context, end context.CancelCauseFunc) {
	for pause.For(ctx, g.c.CompleteEvery/2+time.Duration(g.random()*float64(g.c.CompleteEvery))) {
		for {
			n, err := g.CompleteOnce(ctx)
			switch {
			case errors.Is(err, puddle.ErrClosedPool):
				end(err)
			case err != nil && ctx.Err() == nil:
				g.c.Logger.Warn("completing abandoned requests failed, will retry", "error", private.Text(err))
			}
			if n < g.c.Completers || ctx.Err() != nil {
				break // If all were busy, there may be more.
			}
		}
	}
}

// CompleteOnce runs up to Config.Completers requests that are due now, waits for them, and returns how many it ran. It
// gives up requests that have used all their attempts. An error says that the database could not be asked; ran have run. Any number of
// nodes may call it at once: each request is run by one. Run calls it. With NewEphemeral it does nothing.
func (g *Guard) CompleteOnce(ctx context.Context) (ran int, err error) {
	routes := g.completing()
	if len(routes) == 0 {
		return 0, nil
	}
	names := make([]string, 0, len(routes))
	for name := range routes {
		names = append(names, name)
	}
	slices.Sort(names)
	if err := g.abandon(ctx, names); err != nil {
		return 0, err
	}
	due, err := g.due(ctx, names)
	if err != nil {
		return 0, err
	}
	var wg sync.WaitGroup
	for _, a := range due {
		begin, err := routes[a.Route].resume(ctx, a)
		if err != nil {
			wg.Wait()
			return ran, err
		}
		if begin != nil {
			ran++
			wg.Go(begin)
		}
	}
	wg.Wait()
	return ran, nil
}

// completing returns the routes whose requests this node completes.
func (g *Guard) completing() map[string]*route {
	g.mu.Lock()
	defer g.mu.Unlock()
	routes := map[string]*route{}
	for _, rt := range g.routes {
		if rt.o.Complete != nil && g.pool != nil {
			routes[rt.o.Operation] = rt
		}
	}
	return routes
}

// abandon gives up requests that have used all their attempts.
func (g *Guard) abandon(ctx context.Context, routes []string) error {
	if g.c.Completion.Attempts < 0 {
		return nil
	}
	rows, err := g.pool.Query(ctx, g.sql.abandon, routes, g.c.Completion.Attempts)
	if err != nil {
		return fmt.Errorf("give up abandoned requests: %w", err)
	}
	given, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Abandoned, err error) {
		var k store.Key
		err = row.Scan(&k.Scope, &k.Operation, &k.Key, &a.Operation, &a.Attempts, (*plain.Micros)(&a.CreatedAt), &a.Steps)
		a.KeyHash = hashName(lockNumber(g.c.Schema, k.Scope, k.Operation, k.Key))
		return a, err
	})
	if err != nil {
		return fmt.Errorf("give up abandoned requests: %w", err)
	}
	for _, a := range given {
		g.c.Logger.Error("abandoned request given up: investigate it, or let its client repeat it", "operation", a.Operation, "key", a.KeyHash, "attempts", a.Attempts, "steps", a.Steps)
		if g.c.Observer.OnAbandoned != nil {
			g.c.Observer.OnAbandoned(a)
		}
	}
	return nil
}

// due finds abandoned requests of these routes.
func (g *Guard) due(ctx context.Context, routes []string) ([]abandonedRequest, error) {
	rows, err := g.pool.Query(ctx, g.sql.due, routes, g.c.Completers)
	if err != nil {
		return nil, fmt.Errorf("look for abandoned requests: %w", err)
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a abandonedRequest, err error) {
		var tries int
		var values, headers string
		if err = row.Scan(&a.run, &tries, &a.key.Scope, &a.key.Operation, &a.key.Key, &a.Route, &a.Principal, &a.Method, &a.Host, &a.URL, &a.Pattern, &values, &headers, (*plain.Bytes)(&a.Body),
			(*plain.Bytes)(&a.fingerprint), &a.attempt); err != nil {
			return a, err
		}
		a.unreadable = a.Read(values, headers)
		return a, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for abandoned requests: %w", err)
	}
	return due, nil
}

// resume claims an abandoned request and returns the function that runs it. It returns nil if the request is left to
// its client or to another node.
func (rt *route) resume(ctx context.Context, a abandonedRequest) (begin func(), err error) {
	g := rt.g
	info := Info{Key: a.key.Key, Principal: a.Principal, Operation: a.Route, Attempt: a.attempt + 1}
	delay := g.c.Completion.Delay(a.attempt+1, g.random())
	r, err := rt.restore(ctx, a, info)
	if err != nil {
		g.c.Logger.Error("stored request cannot be read", "operation", a.Route, "error", private.Text(err))
	}
	if r == nil {
		if _, err := g.pool.Exec(ctx, g.sql.postpone, a.run, max(delay, g.c.CompleteEvery).Microseconds()); err != nil {
			return nil, fmt.Errorf("put off abandoned request: %w", err)
		}
		return nil, nil
	}
	begun := time.Now()
	c, tries := store.Claimed{Mine: true}, 0
	err = g.pg().once(ctx, func(ctx context.Context) error {
		return g.pool.QueryRow(ctx, g.sql.resume, a.run, uuid.NewString(), rt.o.Lease.Microseconds(), rt.o.TTL.Microseconds(), delay.Microseconds()).
			Scan(&c.Fence, &c.Attempt, &tries)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("claim abandoned request: %w", err)
	}
	req := &request{
		Request:     r,
		info:        info,
		scope:       a.key.Scope,
		operation:   a.key.Operation,
		fingerprint: versioned(versionForm, a.fingerprint),
		body:        a.Body,
		lock:        lockNumber(g.c.Schema, a.key.Scope, a.key.Operation, a.key.Key),
		begun:       begun,
		completed:   true,
		route:       a.Route,
	}
	return func() {
		var ended func()
		req.Request, ended = rt.requested(r, a.Route, true)
		defer ended()
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				g.c.Logger.Error("handler panicked while an abandoned request was completed", "operation", a.Route, "key", req.keyHash(), "panic", fmt.Sprintf("%T", p), "at", foreign.PanickedAt())
			}
		}()
		rt.lead(&discard{header: http.Header{}}, req, c, begun, tries)
	}, nil
}

// restore makes the request for the handler. It returns nil if the request is left to its client.
func (rt *route) restore(ctx context.Context, a abandonedRequest, info Info) (r *http.Request, err error) {
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("Route.Complete panicked: a %T at %s", p, foreign.PanickedAt())
		}
	}()
	if a.unreadable != nil {
		return nil, a.unreadable
	}
	if r, err = a.Restore(ctx, a.key.Key); err != nil {
		return nil, err
	}
	return rt.o.Complete(r, info), nil
}

// discard is the http.ResponseWriter of a request that is completed: no client waits for the answer.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}
