package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/wire"
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

// call runs a handler. Its error is a *failure.HandlerError, errOneByOne if a handler that shares its transaction needs one of its own, or wraps
// a *stepFault. A handler that does not return within its time-out and Config.Grace is reported as hung. It still runs.
func (rn *runner) call(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event, about *handling) (err error) {
	if err := rn.tooManyHung(); err != nil {
		return &failure.HandlerError{Err: err, Stopped: true}
	}
	c := rn.of(es[0].Type)
	hctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	r := &run{runner: rn, events: es, attempt: about.attempt, hash: about.hash}
	hctx, ended := rn.observed(r.with(hctx), es, about)
	defer func() { ended(err) }()
	done := make(chan error, 1)
	given := handlertx.Give(hctx, tx, failure.ErrNotTheHandlers)
	defer given.TakeBack()
	r.ctx, r.tx = hctx, given
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
	began := time.Now()
	go func() {
		err := failure.ErrGoexit // unless it returns or panics
		defer func() { done <- err }()
		defer func() {
			if p := recover(); p != nil {
				err = panicOf(p)
			}
		}()
		err = foreign.Error(h(hctx, given, es))
	}()
	returned := func(err error) error {
		err = rn.needing(es[0].Type, err)
		if given.NeedsItsOwn() {
			rn.own.Store(es[0].Type, true)
			if about.shares != nil { // Nothing of that was sent.
				return errOneByOne
			}
		}
		if err := given.Unready(); err != nil {
			return err
		}
		var ours *stepFault
		if errors.As(err, &ours) {
			return err
		}
		conn := tx.Conn().PgConn()
		r := failure.Return{
			Err:     err,
			Timeout: c.Timeout,
			Over:    hctx.Err() != nil,
			Stopped: ctx.Err() != nil,
			Closed:  conn.IsClosed(),
			Busy:    conn.IsBusy(),
			Status:  conn.TxStatus(),
			Ended:   given.Ended(),
			RanOut:  given.RanOut(),
		}
		if r.TimedOut() && r.Closed {
			r.CutOff = q.cutOff(given.Sent())
		}
		if err = r.Judge(); err == nil {
			rn.dependencies.worked(es[0].Type, began)
		}
		var h *failure.HandlerError
		if errors.As(err, &h) {
			h.Began = began
		}
		return err
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

// needing is the error of a handler of the type. One that says that something is away which the registration does not need is a failure like
// others: nothing would pause for it.
func (rn *runner) needing(eventType string, err error) error {
	var said *failure.UnavailableError
	if !errors.As(err, &said) || slices.Contains(rn.kinds[eventType].needs, said.Name) {
		return err
	}
	return fmt.Errorf("%w (inbox.Unavailable names %q, and the registration of the type does not need that: add inbox.Needs(%q))", said.Err, said.Name, said.Name)
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
	from    string          // stateNone or stateStored
	ctx     context.Context // the handler's, once it runs
	hash    []byte          // of the event, as its row has it; nil for a batch
	called  bool            // somebody waits for Receive
	place   int             // the partition of Kafka, -1 for none

	// Others run in its transaction, too. It is called before the handler's first statement; nil where the transaction is its own.
	shares func(ctx context.Context) error
}

// observed tells the Observer that a handler is about to run. It returns the handler's context.
func (rn *runner) observed(ctx context.Context, es []holdfast.Event, about *handling) (context.Context, func(error)) {
	ended := func(error) {}
	if rn.c.Observer.OnHandle != nil {
		ctx, ended = rn.c.Observer.OnHandle(ctx, Handling{
			Consumer:      rn.c.Consumer,
			Events:        es,
			Attempt:       about.attempt,
			FromState:     about.from,
			CorrelationID: rn.correlation(es[0]),
			Partition:     about.place,
			System:        rn.systemAt(about.place),
			Called:        about.called,
		})
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
	return wire.Kafka
}

// errShared is what a handler gets that tries what only one with a transaction of its own may do. It runs again in one.
var errShared = errors.New("not in a transaction with others: the handler runs again in a transaction of its own")

// panicOf makes an error of what the calling deferred function has recovered from.
func panicOf(p any) *failure.PanicError {
	e := &failure.PanicError{
		Message: foreign.Text(p),
		Stack:   trimmedStack(),
		Kind:    fmt.Sprintf("%T", p),
		At:      foreign.PanickedAt(),
	}
	e.Logged = e.Message
	if err, ok := p.(error); ok {
		e.Logged = cmp.Or(foreign.Broken(err), private.Text(err))
	}
	return e
}

// trimmedStack is the stack below the panic, without arguments. Above the panic are only the runtime and this package.
func trimmedStack() string {
	stack := string(debug.Stack())
	if _, below, ok := strings.Cut(stack, "panic("); ok {
		if i := strings.Index(below, "\n"); i >= 0 {
			below = below[i+1:]
			if i := strings.Index(below, "\n"); i >= 0 { // the line that names panic's own file
				stack = below[i+1:]
			}
		}
	}
	var b strings.Builder
	for line := range strings.Lines(stack) {
		if b.Len() > failure.MaxErrorText {
			break
		}
		if !strings.HasPrefix(line, "\t") {
			if i := strings.LastIndex(line, "("); i > 0 {
				line = line[:i] + "\n"
			}
		}
		b.WriteString(line)
	}
	return b.String()
}
