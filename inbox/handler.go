package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/handlertx"
)

// This file runs handlers. No other place does.

// handle runs a handler: for a new or a stored event, for one event or a batch, in our transaction or the caller's. Then
// settle, if it is not nil, settles the events in the same transaction. The error is a *failure.HandlerError when the handler is to
// blame, or when the connection was lost while it ran. failureOf turns it into a *failure.
func (rn *runner) handle(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event, about *handling, settle func(ctx context.Context) error) error {
	if err := rn.call(ctx, tx, h, es, about); err != nil {
		return err
	}
	if settle == nil {
		return nil
	}
	ctx, cancel := rn.bounded(ctx)
	defer cancel()
	return failure.JudgeSettling(settle(ctx), tx.Conn().IsClosed())
}

// call runs a handler. Its error is a *failure.HandlerError, or failure.ErrOneByOne if a handler that shares its transaction needs one of its own. A
// handler that does not return within its time-out and Config.Grace is reported as hung. It still runs.
func (rn *runner) call(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event, about *handling) (err error) {
	if err := rn.tooManyHung(); err != nil {
		return &failure.HandlerError{Err: err, Stopped: true}
	}
	c := rn.of(es[0].Type)
	hctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	hctx = (&run{env: rn.env, events: es, attempt: about.attempt}).with(hctx)
	hctx, ended := rn.observed(hctx, es, about)
	defer func() { ended(err) }()
	done := make(chan error, 1)
	given := handlertx.Give(hctx, tx, failure.ErrNotTheHandlers)
	defer given.TakeBack()
	if about.shares != nil {
		given.Share(errShared)
		given.Before(func() error { return about.shares(hctx) })
	}
	pid := tx.Conn().PgConn().PID()
	var asking <-chan time.Time
	if d := askAfter(*c); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		asking = t.C
	}
	var q *question
	go func() {
		err := failure.ErrGoexit // unless it returns or panics
		defer func() { done <- err }()
		defer func() {
			if p := recover(); p != nil {
				err = failure.PanicOf(p)
			}
		}()
		err = foreign.Error(h(hctx, given, es))
	}()
	returned := func(err error) error {
		if given.NeedsItsOwn() {
			rn.own.Store(es[0].Type, true)
			if about.shares != nil { // Nothing of that was sent.
				return failure.ErrOneByOne
			}
		}
		if err := given.Unready(); err != nil {
			return err
		}
		conn := tx.Conn().PgConn()
		r := failure.Return{
			Err: err, Timeout: c.Timeout, Over: hctx.Err() != nil, Stopped: ctx.Err() != nil,
			Closed: conn.IsClosed(), Busy: conn.IsBusy(), Status: conn.TxStatus(), Ended: given.Ended(), RanOut: given.RanOut(),
		}
		if r.TimedOut() && r.Closed {
			r.CutOff = q.cutOff(given.Sent())
		}
		return r.Judge()
	}
	select {
	case err := <-done:
		return returned(err)
	case <-asking:
		q = rn.ask(hctx, pid)
		select {
		case err := <-done:
			return returned(err)
		case <-hctx.Done():
		}
	case <-hctx.Done():
	}
	grace := time.NewTimer(rn.c.Grace)
	defer grace.Stop()
	select {
	case err := <-done:
		return returned(err)
	case <-grace.C:
	}
	n, e := int(rn.hung.Add(1)), es[0]
	rn.c.Logger.Error("handler hangs", append(rn.attrs(e), "attempt", about.attempt, "from_state", about.from, "to_state", about.from, "hung", n)...)
	if rn.c.Observer.OnHungHandler != nil {
		rn.c.Observer.OnHungHandler(e, n)
	}
	return &failure.HandlerError{
		Err:      failure.Ours("the handler was cancelled after %s and did not return within %s", c.Timeout, c.Grace),
		TimedOut: ctx.Err() == nil, Stopped: ctx.Err() != nil, Hung: done,
	}
}

// tooManyHung is the error that stops this node, when too many handlers hang.
func (rn *runner) tooManyHung() error {
	if n := rn.hung.Load(); n >= int64(rn.c.MaxHung) {
		return fmt.Errorf("%w: %d of at most %d have not returned: restart the process, and find what they wait for", ErrHungHandlers, n, rn.c.MaxHung)
	}
	return nil
}

// handling is what a run of a handler is about.
type handling struct {
	attempt int
	from    string          // StateNone or StateStored
	ctx     context.Context // the handler's, once it runs
	called  bool            // somebody waits for Receive
	place   int             // the partition of Kafka, -1 for none

	// Others run in its transaction, too. It is called before the handler's first statement; nil where the transaction is its own.
	shares func(ctx context.Context) error
}

// observed tells the Observer that a handler is about to run. It returns the handler's context.
func (rn *runner) observed(ctx context.Context, es []holdfast.Event, about *handling) (context.Context, func(error)) {
	ended := func(error) {}
	if rn.c.Observer.OnHandle != nil {
		ctx, ended = rn.c.Observer.OnHandle(ctx, Handling{Consumer: rn.c.Consumer, Events: es, Attempt: about.attempt, FromState: about.from, CorrelationID: rn.correlation(es[0]),
			Partition: about.place, System: rn.systemAt(about.place), Called: about.called})
	}
	about.ctx = ctx
	return ctx, ended
}

// systemAt is the messaging system that a partition is of. An event that was stored has none of its own: its consumer's source is taken to be
// of the same system still.
func (env *env) systemAt(place int) string {
	if place < 0 {
		return ""
	}
	if system := env.system.Load(); system != nil {
		return *system
	}
	return systemKafka
}

// errShared is what a handler gets that tries what only one with a transaction of its own may do. It runs again in one.
var errShared = errors.New("not in a transaction with others: the handler runs again in a transaction of its own")
