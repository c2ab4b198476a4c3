package inbox

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file puts middleware around handlers, and watches how it calls them.

// ErrSettle is what a middleware returns, alone or wrapped, to have an event settled as handled although its handler was not called, or
// failed. What was written on the transaction commits: use a savepoint (tx.Begin) for what shall not.
var ErrSettle = errors.New("settled by a middleware without its handler")

// wrapped is a handler of single events with its middleware.
func wrapped(h Handler, around []func(Handler) Handler) BatchHandler {
	one := h
	if len(around) > 0 {
		one = func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			return callsFrom(ctx).run(func() error {
				if r, ok := ctx.Value(runKey{}).(*run); ok {
					r.steps.Begins()
				}
				return h(ctx, tx, e)
			}, e)
		}
		for i := len(around) - 1; i >= 0; i-- {
			one = around[i](one)
		}
	}
	return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		for _, e := range events {
			if len(around) == 0 {
				if err := one(ctx, tx, e); err != nil {
					return err
				}
				continue
			}
			watch := newCalls(e)
			if err := watch.verdict(foreign.Error(one(context.WithValue(ctx, callsKey{}, watch), tx, e))); err != nil {
				return err
			}
		}
		return nil
	}
}

// wrappedBatch is a handler of batches with its middleware.
func wrappedBatch(h BatchHandler, around []func(BatchHandler) BatchHandler) BatchHandler {
	if len(around) == 0 {
		return h
	}
	all := BatchHandler(func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		return callsFrom(ctx).run(func() error { return h(ctx, tx, events) }, events...)
	})
	for i := len(around) - 1; i >= 0; i-- {
		all = around[i](all)
	}
	return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		watch := newCalls(events...)
		return watch.verdict(foreign.Error(all(context.WithValue(ctx, callsKey{}, watch), tx, events)))
	}
}

type callsKey struct{}

// calls is how a handler was called by its middleware, in one run.
type calls struct {
	mu   sync.Mutex
	of   map[[2]string]call // by source and id
	over bool               // the middleware has returned
}

// call is how far an event has come.
type call struct {
	state callState
	err   error // why its last call failed
}

type callState int

const (
	callNone callState = iota
	callRunning
	callFailed
	callDone
)

func identify(e holdfast.Event) [2]string { return [2]string{e.Source, e.ID} }

func newCalls(events ...holdfast.Event) *calls {
	c := &calls{of: make(map[[2]string]call, len(events))}
	for _, e := range events {
		c.of[identify(e)] = call{}
	}
	return c
}

// callsFrom is nil for a context that was not made from that of the middleware.
func callsFrom(ctx context.Context) *calls {
	c, _ := ctx.Value(callsKey{}).(*calls)
	return c
}

// run runs the handler for events, unless that would be wrong.
func (c *calls) run(h func() error, events ...holdfast.Event) (err error) {
	if c == nil {
		return failure.Ours("a middleware called the handler with a context that was not made from its own: the handler would run without a limit")
	}
	if err := c.begin(events); err != nil {
		return err
	}
	err = failure.Ours("the handler panicked, or ended its goroutine") // unless it returns
	defer func() { c.end(events, err) }()
	err = foreign.Error(h())
	return err
}

func (c *calls) begin(events []holdfast.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return failure.Ours("a middleware called the handler after it had returned: the handler's transaction has ended")
	}
	for _, e := range events {
		switch now, given := c.of[identify(e)]; {
		case !given:
			return failure.Ours("a middleware called the handler with the event %s of %s, which it was not given", excerpt(e.ID), excerpt(e.Source))
		case now.state == callRunning:
			return failure.Ours("a middleware called the handler while it was running: a transaction is for one at a time")
		case now.state == callDone:
			return failure.Ours("a middleware called the handler again after it had succeeded: its effect would come twice")
		}
	}
	for _, e := range events {
		c.of[identify(e)] = call{state: callRunning}
	}
	return nil
}

func (c *calls) end(events []holdfast.Event, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := call{state: callDone}
	if err != nil {
		after = call{callFailed, err}
	}
	for _, e := range events {
		c.of[identify(e)] = after
	}
}

// verdict is what the run amounts to, given what the outermost middleware returned.
func (c *calls) verdict(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	settled := errors.Is(err, ErrSettle)
	for _, now := range c.of {
		switch {
		case now.state == callRunning:
			return errors.Join(failure.Ours("a middleware returned while the handler was running: wait for what it starts"), err)
		case err != nil:
		case now.state == callFailed:
			return failure.OursOf(now.err, "a middleware returned nil, but the handler failed (to settle the event all the same, return inbox.ErrSettle)")
		case now.state == callNone:
			return failure.Ours("a middleware returned nil without calling the handler: call next, or return inbox.ErrSettle to settle the event without it")
		}
	}
	if settled {
		return nil
	}
	return err
}
