package failure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/retry"
)

// This file judges handlers that have returned, and nothing else does. It is pure: values in, values out.

// Return is what is known of a handler that has returned, and of the connection that it used.
type Return struct {
	Err     error
	Timeout time.Duration // Config.Timeout
	Over    bool          // its context has ended
	Stopped bool          // the context that its own is derived from has ended
	Closed  bool          // its connection is closed
	Busy    bool          // rows or batch results are open
	Status  byte          // of its transaction: 'T' in progress, 'E' failed, 'I' none
	Ended   bool          // it ended its transaction by a statement, or tried to, and may have begun another
	RanOut  bool          // a time-out of its own closed the connection
	CutOff  bool          // the network swallowed what it sent
}

// TimedOut reports that its time is over, and that nothing else ended its context.
func (r Return) TimedOut() bool { return r.Over && !r.Stopped }

// Judge is nil for a handler whose work may be committed, and a *HandlerError for others. The order of the cases matters: what
// closed a connection explains everything after it.
func (r Return) Judge() error {
	timedOut := r.TimedOut()
	cancelled := func() string { return fmt.Sprintf("the handler was cancelled after %s", r.Timeout) }
	switch {
	case !r.Closed && (r.Ended || r.Status == 'I'): // Its work is committed or gone, or it does not know that it must not. Another attempt would not help.
		return endedItself(r.Err)
	case r.Err != nil:
		if r.Closed && !timedOut && !r.Stopped && (errors.Is(r.Err, context.DeadlineExceeded) || errors.Is(r.Err, context.Canceled) || r.RanOut) {
			// pgx closes the connection under a statement whose context ends. Here the handler made that context.
			return &HandlerError{Err: OursOf(r.Err, "the handler's own time-out"), TimedOut: true}
		}
		err := r.Err
		if timedOut {
			err = OursOf(err, "%s", cancelled())
		}
		return &HandlerError{Err: err, TimedOut: timedOut, Stopped: r.Stopped, CutOff: r.CutOff}
	case r.Closed && timedOut:
		return &HandlerError{Err: Ours("%s", cancelled()), TimedOut: true, CutOff: r.CutOff}
	case r.Closed && !r.Stopped && r.RanOut:
		return &HandlerError{Err: Ours("the handler's own time-out closed its connection, but the handler returned nil"), TimedOut: true}
	case r.Closed:
		return &HandlerError{Err: Ours("the connection was lost, but the handler returned nil"), Stopped: r.Stopped}
	case timedOut: // It may have done half its work.
		return &HandlerError{Err: Ours("%s, and then returned nil: return the context's error instead", cancelled()), TimedOut: true}
	case r.Stopped:
		return &HandlerError{Err: Ours("the handler was told to stop, and then returned nil"), Stopped: true}
	case r.Busy:
		return &HandlerError{Err: Ours("the handler left rows or batch results open: close them before it returns")}
	case r.Status == 'E':
		return &HandlerError{Err: Ours("a statement failed, but the handler returned nil: return the error, or run the statement under a savepoint (tx.Begin)")}
	default:
		return nil
	}
}

// endedItself is the failure of a handler that ended its transaction, or tried to, and then returned err.
func endedItself(err error) error {
	if err == nil || errors.Is(err, ErrNotTheHandlers) {
		err = ErrNotTheHandlers
	} else {
		err = fmt.Errorf("%w; it returned: %w", ErrNotTheHandlers, err)
	}
	return &HandlerError{Ended: true, Err: retry.Permanent(OursOf(err, "the handler ended its transaction by a statement"))}
}

// JudgeSettling judges an error of our own statements after a handler that returned nil. They work after every other handler. So
// when Postgres refuses them, this handler changed its transaction: its role, a setting, a constraint. closed says that the
// connection is closed: it was lost earlier, and our statement only found out.
func JudgeSettling(err error, closed bool) error {
	var server *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case closed:
		return &HandlerError{Err: err, Behind: true}
	case errors.As(err, &server):
		return &HandlerError{Behind: true, Err: OursOf(err, "the handler returned nil, but the event cannot be settled in its transaction: "+
			"check for a role or a setting that the handler changed (set local)")}
	default:
		return err
	}
}

// ErrNotTheHandlers is what Commit and Rollback of a handler's transaction return, and statements that would end it.
var ErrNotTheHandlers error = Ours("holdfast ends the handler's transaction itself: return nil to commit, an error to roll back, or use a savepoint (tx.Begin)")
