package failure

import (
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/retry"
)

// This file says whose fault it is that a transaction failed.

// Fault says whose fault it is that a transaction failed.
type Fault int

const (
	FaultEvent       Fault = iota // the handler failed on the event: spends an attempt
	FaultContended                // 40001 or 40P01: nobody's fault; run it again at once
	FaultDatabase                 // the database, or the connection to it: wait, and spend no attempt
	FaultUnknown                  // COMMIT got no answer: look before anything is decided
	FaultStopped                  // this node is stopping: hand back what is in progress
	FaultFenced                   // another node has the partition: release it
	FaultFull                     // too many events wait already: the sender waits for room
	FaultLost                     // the connection broke under the handler, or a server said that it cannot work: spends no attempt, unless it goes on (amounts)
	FaultUnable                   // of these, what a server says of its disk (History.After): spends no attempt, however long it goes on
	FaultUnavailable              // something that the handler needs is away: wait in the queue, and spend no attempt
	FaultInFlight                 // another transaction has the event, and this one does not wait
)

func (f Fault) String() string {
	return [...]string{"event", "contended", "database", "unknown", "stopped", "fenced", "full", "lost", "unable", "unavailable", "in flight"}[f]
}

// Outage reports that the database, or the connection to it, has to come back first.
func (f Fault) Outage() bool {
	return f == FaultDatabase || f == FaultUnknown || f == FaultLost || f == FaultUnable
}

// Facts is what else is known of a transaction that failed.
type Facts struct {
	Stopped    bool // its context was cancelled from outside
	TimedOut   bool // its handler ran into Config.Timeout
	ConnLost   bool // its connection was closed when it failed
	InHandler  bool // the error is the handler's, not one of our own statements'
	Behind     bool // the error is that of our own statement, after a handler had returned nil
	CutOff     bool // the handler timed out while the network swallowed what it sent
	Committing bool // the error is the answer to COMMIT
}

// FaultOf says whose fault err is. The order of the cases matters. If pgx closed the connection because the handler's time was
// up, the handler is at fault; if the connection broke under it, it is not. When a server told the handler that it cannot
// work, that need not be our database, nor concern any other event.
func FaultOf(err error, c Facts) Fault {
	var pgErr *pgconn.PgError
	isPg := errors.As(err, &pgErr)
	switch {
	case errors.Is(err, ErrFenced):
		return FaultFenced
	case errors.Is(err, ErrFull):
		return FaultFull
	case errors.Is(err, ErrInFlight):
		return FaultInFlight
	case c.Committing && !isPg && !errors.Is(err, pgx.ErrTxCommitRollback):
		return FaultUnknown // Never ask pgconn.SafeToRetry here: it says yes to a COMMIT that was carried out.
	case c.Committing && isPg && unavailable(pgErr.Code):
		return FaultUnknown // The server went away during the COMMIT. A look costs little; a wrong guess costs a lot.
	case c.TimedOut && c.CutOff:
		return FaultLost
	case c.InHandler && !c.Behind && !c.Stopped && saysUnavailable(err):
		return FaultUnavailable // Its time may be over, too: it waited for that.
	case c.TimedOut:
		return FaultEvent
	case c.Stopped:
		return FaultStopped
	case isPg && (pgErr.Code == "40001" || pgErr.Code == "40P01"):
		return FaultContended
	case c.Behind && isPg && (pgErr.Code == "55P03" || pgErr.Code == "57014"):
		return FaultLost // Others hold a lock for long, or the server cancelled it. It may also be a setting of the handler.
	case c.Behind && isPg && pgErr.Code == "25006" && !c.ConnLost:
		return FaultEvent // The transaction could write before the handler ran.
	case c.InHandler && (c.ConnLost || isPg && unavailable(pgErr.Code)):
		return FaultLost
	case c.ConnLost:
		return FaultDatabase
	case c.InHandler, c.Committing, isPg && ofTheData(pgErr.Code):
		return FaultEvent
	default:
		return FaultDatabase // One of our own statements failed: no event is to blame.
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

// saysUnable reports that err tells of a server's disk: it is full (53100), or fails (58030). A person has to mend that, and meanwhile
// every event may meet it. The others that unavailable knows are more often an event's own doing: memory (53200), a limit such as
// temp_file_limit (53400), a file that a payload names (58P01), a transaction that a handler made read only (25006), a session that it
// ended (57P01). Or another server says them, to who connects to it: 08001, 53300, 57P03. A handler that says itself what is to be done
// (retry.Permanent, retry.After) is believed.
func saysUnable(err error) bool {
	var pgErr *pgconn.PgError
	_, asked := retry.AfterOf(err)
	return errors.As(err, &pgErr) && (pgErr.Code == "53100" || pgErr.Code == "58030") && !asked && !retry.IsPermanent(err)
}

// saysUnavailable reports that a handler has said that something it needs is away.
func saysUnavailable(err error) bool {
	var said *UnavailableError
	return errors.As(err, &said) && !retry.IsPermanent(err)
}

// UnavailableError is what a handler returns when something that it needs is away: inbox.Unavailable.
type UnavailableError struct {
	Name string // of the dependency
	Err  error
}

func (e *UnavailableError) Error() string { return e.Name + " is away: " + foreign.Text(e.Err) }
func (e *UnavailableError) Unwrap() error { return e.Err }

// Error is the error of a transaction that failed.
type Error struct {
	Fault Fault
	Err   error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// HandlerError marks an error that a handler caused, as opposed to our own statements.
type HandlerError struct {
	Err      error
	Began    time.Time // when it began; zero if it has not returned
	TimedOut bool
	Stopped  bool
	CutOff   bool         // as in Facts
	Behind   bool         // as in Facts
	Ended    bool         // the handler ended its transaction by a statement, or tried to
	Hung     <-chan error // not nil while the handler has not returned
}

func (e *HandlerError) Error() string { return e.Err.Error() }
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is a panic of a handler, with its stack.
type PanicError struct {
	Message string // of its value
	Stack   string // below the panic, without arguments
	Kind    string // the type of its value
	At      string // the function and line where it came from
	Logged  string // Message, without what Postgres quotes
}

// MaxErrorText is the most bytes kept of one error.
const MaxErrorText = 2 << 10

func (e *PanicError) Error() string { return "panic: " + e.Message + "\n" + e.Stack }

// ErrGoexit means that a handler ended its goroutine.
var ErrGoexit error = Ours("the handler ended its goroutine (runtime.Goexit)")

// ErrFull means that too many events wait already: inbox.ErrFull.
var ErrFull = errors.New("too many events wait")

// ErrInFlight means that another transaction has the event, and this one does not wait: inbox.ErrInFlight.
var ErrInFlight = errors.New("the event is being handled already")

// ErrFenced means that the group has given the partition to another node.
var ErrFenced = errors.New("another node has the partition")
