package inbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// This file says whose fault it is that a transaction did not come to its end. It does nothing: values in, values out.

// fault says whose fault it is that a transaction did not come to its end.
type fault int

const (
	faultEvent     fault = iota // the handler failed on the event: an attempt is spent
	faultContended              // 40001 or 40P01: nobody's fault, at once again
	faultDatabase               // the database or the way to it: wait, and spend no attempt
	faultUnknown                // COMMIT without an answer: look before anything is decided
	faultStopped                // we were told to stop: hand back what is in progress
	faultFenced                 // another node has the partition: let go of it
	faultFull                   // it would have to wait where too many do: its sender waits for room
	faultLost                   // the connection broke under the handler, or a server told it that it cannot work: not its doing, unless it goes on (amounts)
	faultInFlight               // another transaction has the event, and it was not to be waited for
)

func (f fault) String() string {
	return [...]string{"event", "contended", "database", "unknown", "stopped", "fenced", "full", "lost", "in flight"}[f]
}

// outage says that the database, or the way to it, is to be waited for.
func (f fault) outage() bool { return f == faultDatabase || f == faultUnknown || f == faultLost }

// failureFacts is what else is known of a transaction that failed.
type failureFacts struct {
	stopped    bool // the context that we gave it was cancelled from outside
	timedOut   bool // its handler ran into Config.Timeout
	connLost   bool // the connection was closed when it failed
	inHandler  bool // the error is the handler's, not that of one of our own statements
	committing bool // the error is the answer to COMMIT
}

// faultOf says whose fault err is. The order matters: a connection that pgx closed because the handler's time was up is
// the handler's fault, one that broke under it is not. What a handler was told by a server that cannot work need not come
// from our database, nor concern any event but its own.
func faultOf(err error, c failureFacts) fault {
	var pgErr *pgconn.PgError
	isPg := errors.As(err, &pgErr)
	switch {
	case errors.Is(err, errFenced):
		return faultFenced
	case errors.Is(err, ErrFull):
		return faultFull
	case errors.Is(err, ErrInFlight):
		return faultInFlight
	case c.committing && !isPg && !errors.Is(err, pgx.ErrTxCommitRollback):
		return faultUnknown // Never ask pgconn.SafeToRetry here: it says yes to a COMMIT that was carried out.
	case c.committing && isPg && unavailable(pgErr.Code):
		return faultUnknown // The server went away around the COMMIT. Looking costs little, guessing wrong a lot.
	case c.timedOut:
		return faultEvent
	case c.stopped:
		return faultStopped
	case isPg && (pgErr.Code == "40001" || pgErr.Code == "40P01"):
		return faultContended
	case c.inHandler && (c.connLost || isPg && unavailable(pgErr.Code)):
		return faultLost
	case c.connLost:
		return faultDatabase
	case c.inHandler, c.committing:
		return faultEvent
	default:
		return faultDatabase // One of our own statements: no event can be blamed for it.
	}
}

// unavailable says whether a SQLSTATE means that the server cannot work now, whatever it is asked.
func unavailable(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P05", "25006":
		return true // shutting down, crashed, starting, session timed out, read only: a standby
	}
	// Connection exceptions, insufficient resources, system errors.
	return len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "58")
}

// failure is what a transaction that did not come to its end returns.
type failure struct {
	fault fault
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// handlerError marks what a handler brought about, so that it differs from our own statements' errors.
type handlerError struct {
	err      error
	timedOut bool
	stopped  bool
	hung     <-chan error // set when the handler has not returned
}

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// panicError is a panic of a handler: its message, and where it came from.
type panicError struct {
	message string
	stack   string
}

func (e *panicError) Error() string { return "panic: " + e.message + "\n" + e.stack }

// failureOf is the verdict on what failed in a transaction, by whichever way that came about.
func failureOf(ctx context.Context, tx pgx.Tx, err error) *failure {
	var c failureFacts
	var h *handlerError
	if errors.As(err, &h) {
		c.inHandler, c.timedOut, c.stopped = true, h.timedOut, h.stopped
	}
	if h == nil || h.hung == nil { // A handler that hangs may be using the connection.
		c.connLost = tx.Conn().IsClosed()
	}
	return blame(ctx, err, c)
}

// blame makes a *failure of an error.
func blame(ctx context.Context, err error, c failureFacts) *failure {
	c.stopped = c.stopped || ctx.Err() != nil
	return &failure{faultOf(err, c), err}
}

// errGoexit is a handler that ended its goroutine.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// errFenced says that another node has been given the partition.
var errFenced = errors.New("another node has the partition")
