package inbox

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/handlertx"
)

// This file runs handlers. No other place does.

// handle runs a handler: for a new or a stored event, for one event or a batch, in our transaction or the caller's. Then
// settle, if it is not nil, settles the events in the same transaction. The error is a *handlerError when the handler is to
// blame, or when the connection was lost while it ran. failureOf turns it into a *failure.
func (rn *runner) handle(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event, settle func(ctx context.Context) error) error {
	if err := rn.call(ctx, tx, h, es); err != nil {
		return err
	}
	if settle == nil {
		return nil
	}
	ctx, cancel := rn.bounded(ctx)
	defer cancel()
	return judgeSettling(settle(ctx), tx.Conn().IsClosed())
}

// call runs a handler. Its error is a *handlerError. A handler that does not return within Config.Timeout and Config.Grace is
// reported as hung. It still runs.
func (rn *runner) call(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event) error {
	if err := rn.tooManyHung(); err != nil {
		return &handlerError{err: err, stopped: true}
	}
	hctx, cancel := context.WithTimeout(ctx, rn.c.Timeout)
	defer cancel()
	done := make(chan error, 1)
	given := handlertx.Give(hctx, tx, errNotTheHandlers)
	defer given.TakeBack()
	pid := tx.Conn().PgConn().PID()
	var asking <-chan time.Time
	if d := askAfter(rn.c); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		asking = t.C
	}
	var q *question
	go func() {
		err := errGoexit // unless it returns or panics
		defer func() {
			if p := recover(); p != nil {
				err = &panicError{panicMessage(p), trimmedStack()}
			}
			done <- err
		}()
		err = h(hctx, given, es)
	}()
	returned := func(err error) error {
		conn := tx.Conn().PgConn()
		r := handlerReturn{
			err: err, timeout: rn.c.Timeout, over: hctx.Err() != nil, stopped: ctx.Err() != nil,
			closed: conn.IsClosed(), busy: conn.IsBusy(), status: conn.TxStatus(), ended: given.Ended(), ranOut: given.RanOut(),
		}
		if r.timedOut() && r.closed {
			r.cutOff = q.cutOff(given.Sent())
		}
		return r.judge()
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
	rn.c.Logger.Error("handler hangs", "consumer", rn.c.Consumer, "type", e.Type, "source", e.Source, "id", e.ID, "hung", n)
	if rn.c.Observer.OnHungHandler != nil {
		rn.c.Observer.OnHungHandler(e, n)
	}
	return &handlerError{
		err:      fmt.Errorf("the handler was cancelled after %s and did not return within %s", rn.c.Timeout, rn.c.Grace),
		timedOut: ctx.Err() == nil, stopped: ctx.Err() != nil, hung: done,
	}
}

// tooManyHung is the error that stops this node, when too many handlers hang.
func (rn *runner) tooManyHung() error {
	if n := rn.hung.Load(); n >= int64(rn.c.MaxHung) {
		return fmt.Errorf("%w: %d of at most %d have not returned: restart the process, and find what they wait for", ErrHungHandlers, n, rn.c.MaxHung)
	}
	return nil
}

// panicMessage is the message of a panic. A value that is no message may be the event itself: only its type is reported.
func panicMessage(p any) string {
	switch p := p.(type) {
	case error:
		return p.Error()
	case string:
		return p
	default:
		return fmt.Sprintf("a value of type %T", p)
	}
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
		if b.Len() > maxErrorText {
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
