package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file says whose fault it is that a transaction failed. faultOf is pure: values in, values out.

// fault says whose fault it is that a transaction failed.
type fault int

const (
	faultEvent     fault = iota // the handler failed on the event: spends an attempt
	faultContended              // 40001 or 40P01: nobody's fault; run it again at once
	faultDatabase               // the database, or the connection to it: wait, and spend no attempt
	faultUnknown                // COMMIT got no answer: look before anything is decided
	faultStopped                // this node is stopping: hand back what is in progress
	faultFenced                 // another node has the partition: release it
	faultFull                   // too many events wait already: the sender waits for room
	faultLost                   // the connection broke under the handler, or a server said that it cannot work: spends no attempt, unless it goes on (amounts)
	faultInFlight               // another transaction has the event, and this one does not wait
)

func (f fault) String() string {
	return [...]string{"event", "contended", "database", "unknown", "stopped", "fenced", "full", "lost", "in flight"}[f]
}

// outage reports that the database, or the connection to it, has to come back first.
func (f fault) outage() bool { return f == faultDatabase || f == faultUnknown || f == faultLost }

// failureFacts is what else is known of a transaction that failed.
type failureFacts struct {
	stopped    bool // its context was cancelled from outside
	timedOut   bool // its handler ran into Config.Timeout
	connLost   bool // its connection was closed when it failed
	inHandler  bool // the error is the handler's, not one of our own statements'
	behind     bool // the error is that of our own statement, after a handler had returned nil
	cutOff     bool // the handler timed out while the network swallowed what it sent
	committing bool // the error is the answer to COMMIT
}

// faultOf says whose fault err is. The order of the cases matters. If pgx closed the connection because the handler's time was
// up, the handler is at fault; if the connection broke under it, it is not. When a server told the handler that it cannot
// work, that need not be our database, nor concern any other event.
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
		return faultUnknown // The server went away during the COMMIT. A look costs little; a wrong guess costs a lot.
	case c.timedOut && c.cutOff:
		return faultLost
	case c.timedOut:
		return faultEvent
	case c.stopped:
		return faultStopped
	case isPg && (pgErr.Code == "40001" || pgErr.Code == "40P01"):
		return faultContended
	case c.behind && isPg && (pgErr.Code == "55P03" || pgErr.Code == "57014"):
		return faultLost // Others hold a lock for long, or the server cancelled it. It may also be a setting of the handler.
	case c.behind && isPg && pgErr.Code == "25006" && !c.connLost:
		return faultEvent // The transaction could write before the handler ran.
	case c.inHandler && (c.connLost || isPg && unavailable(pgErr.Code)):
		return faultLost
	case c.connLost:
		return faultDatabase
	case c.inHandler, c.committing, isPg && ofTheData(pgErr.Code):
		return faultEvent
	default:
		return faultDatabase // One of our own statements failed: no event is to blame.
	}
}

// ofTheData reports that a SQLSTATE means: these values are refused, however often they are written. A trigger or a constraint
// of somebody else on our tables may do that.
func ofTheData(code string) bool {
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23" || code[:2] == "P0")
}

// unavailable reports that a SQLSTATE means: the server can do nothing now, whatever it is asked.
func unavailable(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P05", "25006":
		return true // shutting down, crashed, starting, session timed out, read only (a standby)
	}
	// Connection exceptions, insufficient resources, system errors.
	return len(code) == 5 && (code[:2] == "08" || code[:2] == "53" || code[:2] == "58")
}

// failure is the error of a transaction that failed.
type failure struct {
	fault fault
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// handlerError marks an error that a handler caused, as opposed to our own statements.
type handlerError struct {
	err      error
	timedOut bool
	stopped  bool
	cutOff   bool         // as in failureFacts
	behind   bool         // as in failureFacts
	ended    bool         // the handler ended its transaction by a statement, or tried to
	hung     <-chan error // not nil while the handler has not returned
}

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// panicError is a panic of a handler, with its stack.
type panicError struct {
	message string
	stack   string
	kind    string // the type of its value
	at      string // the function and line where it came from
	logged  string // message, without what Postgres quotes
}

// panicOf makes a panicError of what the calling deferred function has recovered from.
func panicOf(p any) *panicError {
	e := &panicError{message: foreign.Text(p), stack: trimmedStack(), kind: fmt.Sprintf("%T", p), at: foreign.PanickedAt()}
	e.logged = e.message
	if err, ok := p.(error); ok {
		e.logged = or(foreign.Broken(err), private.Text(err))
	}
	return e
}

// maxErrorText is the most bytes kept of one error.
const maxErrorText = 2 << 10

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

func (e *panicError) Error() string { return "panic: " + e.message + "\n" + e.stack }

// failureOf says whose fault it is that a transaction failed with err.
func failureOf(ctx context.Context, tx pgx.Tx, err error) *failure {
	var c failureFacts
	var h *handlerError
	if errors.As(err, &h) {
		c.inHandler, c.behind, c.timedOut, c.cutOff, c.stopped = true, h.behind, h.timedOut, h.cutOff, h.stopped
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

// errGoexit means that a handler ended its goroutine.
var errGoexit error = ours("the handler ended its goroutine (runtime.Goexit)")

// errFenced means that the group has given the partition to another node.
var errFenced = errors.New("another node has the partition")

// errOneByOne ends a transaction of several events that have to come one by one. In a batch, one is known or has to wait for
// its key. Among followers, one is known, nothing is before them any more, or there is no room. In a group, a handler
// needs a transaction of its own, none of the events may be handled now, or somebody else has recorded one meanwhile.
var errOneByOne = errors.New("the events have to come one by one")
