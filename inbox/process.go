package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/retry"
)

// This file runs one handler in one transaction, and tells apart whose fault it is when that fails.

// patience bounds what we do on our own account when the caller's context is over: rolling back, committing.
const patience = 10 * time.Second

// errNotTheHandlers is what Commit and Rollback of a handler's transaction say.
var errNotTheHandlers = errors.New("holdfast ends the handler's transaction itself: return nil to commit, an error to roll back, or use a savepoint (tx.Begin)")

// errGoexit is a handler that ended its goroutine.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// runner runs handlers, each in a transaction.
type runner struct {
	*env
	hung atomic.Int64 // handlers that have not returned
}

// transact runs f in a transaction on a connection of its own, and commits. The error, if any, is a *failure. The
// transaction is rolled back and the connection given back before it returns, so that whoever records the failure
// begins afresh.
func (rn *runner) transact(ctx context.Context, f func(tx pgx.Tx) error) error {
	conn, err := rn.pool.Acquire(ctx)
	if err != nil {
		return blame(ctx, fmt.Errorf("acquire connection: %w", err), circumstances{connLost: true})
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: rn.sql.begin})
	if err != nil {
		lost := conn.Conn().IsClosed()
		conn.Release()
		return blame(ctx, fmt.Errorf("begin: %w", err), circumstances{connLost: lost})
	}
	if err := f(tx); err != nil {
		return rn.failed(ctx, conn, tx, err)
	}
	return rn.commitTx(ctx, conn, tx)
}

// failed ends a transaction in which something failed, and gives its connection back. Where a handler hangs, the
// connection is closed under it and never returned to the pool: the handler would write into another's transaction.
func (rn *runner) failed(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx, err error) error {
	var h *handlerError
	if errors.As(err, &h) && h.hung != nil {
		rn.abandon(conn, h.hung)
		return blame(ctx, err, circumstances{timedOut: h.timedOut, stopped: h.stopped, inHandler: true})
	}
	c := circumstances{connLost: conn.Conn().IsClosed()}
	if h != nil {
		c.inHandler, c.timedOut, c.stopped = true, h.timedOut, h.stopped
	}
	rollback(ctx, tx)
	conn.Release()
	return blame(ctx, err, c)
}

// commitTx commits, whatever has become of ctx, and gives the connection back.
func (rn *runner) commitTx(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx) error {
	defer conn.Release()
	if conn.Conn().IsClosed() { // COMMIT was never sent, so this is not in doubt.
		return blame(ctx, errors.New("the connection was lost before commit"), circumstances{connLost: true})
	}
	failpoint.Hit(failpoint.InboxCommitting)
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	err := tx.Commit(commit)
	cancel()
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = fmt.Errorf("a statement failed, but the handler returned nil: %w", err)
	}
	if err != nil {
		return &failure{judge(err, circumstances{committing: true}), fmt.Errorf("commit: %w", err)}
	}
	return nil
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = tx.Rollback(ctx) // If it cannot be sent the connection is closed, and Postgres rolls back by itself.
}

// abandon leaves a hung handler behind with a dead connection.
func (rn *runner) abandon(pooled *pgxpool.Conn, returned <-chan error) {
	conn := pooled.Hijack() // Of all methods only those of the net.Conn and CancelRequest may be called beside the handler.
	pg := conn.PgConn()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = pg.CancelRequest(ctx) // Frees its locks now rather than when its statement ends.
		_ = pg.Conn().Close()
		<-returned
		rn.hung.Add(-1)
		_ = conn.Close(ctx)
	}()
}

// call runs a handler. Its error is a *handlerError. A handler that does not return within Config.Timeout and
// Config.Grace is reported as hung, and still running.
func (rn *runner) call(ctx context.Context, tx pgx.Tx, h BatchHandler, es []holdfast.Event) error {
	if err := rn.tooManyHung(); err != nil {
		return &handlerError{err: err, stopped: true}
	}
	hctx, cancel := context.WithTimeout(ctx, rn.c.Timeout)
	defer cancel()
	done := make(chan error, 1)
	given := handlertx.Give(hctx, tx, errNotTheHandlers)
	defer given.TakeBack()
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
		timedOut := ctx.Err() == nil && errors.Is(hctx.Err(), context.DeadlineExceeded)
		pg := tx.Conn().PgConn()
		switch {
		case err == nil && pg.IsClosed():
			switch {
			case timedOut:
				return &handlerError{err: fmt.Errorf("the handler was cancelled after %s", rn.c.Timeout), timedOut: true}
			case ctx.Err() == nil && given.RanOut():
				return &handlerError{err: errors.New("a time-out of the handler's own closed its connection, and the handler returned nil all the same"), timedOut: true}
			}
			return &handlerError{err: errors.New("the connection was lost, and the handler returned nil all the same"), stopped: ctx.Err() != nil}
		case err == nil && pg.IsBusy():
			return &handlerError{err: errors.New("the handler left rows or batch results open: close them before it returns")}
		case err == nil && pg.TxStatus() == 'I': // What it did is committed or gone already: another try would not mend it.
			return &handlerError{err: retry.Permanent(fmt.Errorf("the handler ended its transaction by a statement: %w", errNotTheHandlers))}
		case err == nil:
			return nil
		case pg.IsClosed() && !timedOut && ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || given.RanOut()):
			// pgx closes the connection under a statement whose context ends: here one that the handler made for itself.
			return &handlerError{err: fmt.Errorf("a time-out of the handler's own: %w", err), timedOut: true}
		}
		if timedOut {
			err = fmt.Errorf("the handler was cancelled after %s: %w", rn.c.Timeout, err)
		}
		return &handlerError{err: err, timedOut: timedOut, stopped: ctx.Err() != nil}
	}
	select {
	case err := <-done:
		return returned(err)
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

// behind is the error of our own statement behind a handler. Where that finds the connection dead, it was lost while the
// handler ran.
func behind(tx pgx.Tx, err error) error {
	if err != nil && tx.Conn().IsClosed() {
		return &handlerError{err: err}
	}
	return err
}

// tooManyHung says whether this node has to stop.
func (rn *runner) tooManyHung() error {
	if n := rn.hung.Load(); n >= int64(rn.c.MaxHung) {
		return fmt.Errorf("%w: %d of at most %d have not returned: restart the process, and find what they wait for", ErrHungHandlers, n, rn.c.MaxHung)
	}
	return nil
}

// panicMessage is what a panic says. A value that is no message may be the event itself: only its type is told.
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

// trimmedStack is the stack from where the handler panicked: what lies above is the runtime and this package. Arguments
// are left out.
func trimmedStack() string {
	stack := string(debug.Stack())
	if _, below, ok := strings.Cut(stack, "panic("); ok {
		if i := strings.Index(below, "\n"); i >= 0 {
			below = below[i+1:]
			if i := strings.Index(below, "\n"); i >= 0 { // the line of panic's own file
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

// pause waits, and returns early with an error when the context ends.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		runtime.Gosched()
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
