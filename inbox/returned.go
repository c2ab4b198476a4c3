package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file judges handlers that have returned, and nothing else does. It is pure: values in, values out.

// handlerReturn is what is known of a handler that has returned, and of the connection that it used.
type handlerReturn struct {
	err     error
	timeout time.Duration // Config.Timeout
	over    bool          // its context has ended
	stopped bool          // the context that its own is derived from has ended
	closed  bool          // its connection is closed
	busy    bool          // rows or batch results are open
	status  byte          // of its transaction: 'T' in progress, 'E' failed, 'I' none
	ended   bool          // it ended its transaction by a statement, or tried to, and may have begun another
	ranOut  bool          // a time-out of its own closed the connection
	cutOff  bool          // the network swallowed what it sent
}

// timedOut reports that its time is over, and that nothing else ended its context.
func (r handlerReturn) timedOut() bool { return r.over && !r.stopped }

// judge is nil for a handler whose work may be committed, and a *handlerError for others. The order of the cases matters: what
// closed a connection explains everything after it.
func (r handlerReturn) judge() error {
	timedOut := r.timedOut()
	cancelled := fmt.Sprintf("the handler was cancelled after %s", r.timeout)
	switch {
	case !r.closed && (r.ended || r.status == 'I'): // Its work is committed or gone, or it does not know that it must not. Another attempt would not help.
		return endedItself(r.err)
	case r.err != nil:
		if r.closed && !timedOut && !r.stopped && (errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, context.Canceled) || r.ranOut) {
			// pgx closes the connection under a statement whose context ends. Here the handler made that context.
			return &handlerError{err: oursOf(r.err, "the handler's own time-out"), timedOut: true}
		}
		err := r.err
		if timedOut {
			err = oursOf(err, "%s", cancelled)
		}
		return &handlerError{err: err, timedOut: timedOut, stopped: r.stopped, cutOff: r.cutOff}
	case r.closed && timedOut:
		return &handlerError{err: ours("%s", cancelled), timedOut: true, cutOff: r.cutOff}
	case r.closed && !r.stopped && r.ranOut:
		return &handlerError{err: ours("the handler's own time-out closed its connection, but the handler returned nil"), timedOut: true}
	case r.closed:
		return &handlerError{err: ours("the connection was lost, but the handler returned nil"), stopped: r.stopped}
	case timedOut: // It may have done half its work.
		return &handlerError{err: ours("%s, and then returned nil: return the context's error instead", cancelled), timedOut: true}
	case r.stopped:
		return &handlerError{err: ours("the handler was told to stop, and then returned nil"), stopped: true}
	case r.busy:
		return &handlerError{err: ours("the handler left rows or batch results open: close them before it returns")}
	case r.status == 'E':
		return &handlerError{err: ours("a statement failed, but the handler returned nil: return the error, or run the statement under a savepoint (tx.Begin)")}
	default:
		return nil
	}
}

// endedItself is the failure of a handler that ended its transaction, or tried to, and then returned err.
func endedItself(err error) error {
	if err == nil || errors.Is(err, errNotTheHandlers) {
		err = errNotTheHandlers
	} else {
		err = fmt.Errorf("%w; it returned: %w", errNotTheHandlers, err)
	}
	return &handlerError{ended: true, err: retry.Permanent(oursOf(err, "the handler ended its transaction by a statement"))}
}

// judgeSettling judges an error of our own statements after a handler that returned nil. They work after every other handler. So
// when Postgres refuses them, this handler changed its transaction: its role, a setting, a constraint. closed says that the
// connection is closed: it was lost earlier, and our statement only found out.
func judgeSettling(err error, closed bool) error {
	var server *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case closed:
		return &handlerError{err: err, behind: true}
	case errors.As(err, &server):
		return &handlerError{behind: true, err: oursOf(err, "the handler returned nil, but the event cannot be settled in its transaction: "+
			"check for a role or a setting that the handler changed (set local)")}
	default:
		return err
	}
}

// errNotTheHandlers is what Commit and Rollback of a handler's transaction return, and statements that would end it.
var errNotTheHandlers error = ours("holdfast ends the handler's transaction itself: return nil to commit, an error to roll back, or use a savepoint (tx.Begin)")
