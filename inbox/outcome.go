package inbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// Outcome says what became of an event. It is durable when a method returns it.
type Outcome string

// The outcomes.
const (
	Handled   Outcome = "handled"   // its handler ran and committed
	Duplicate Outcome = "duplicate" // it was settled or stored before: nothing was done
	Stored    Outcome = "stored"    // it waits, and no handler of it has failed: docs/operations/consumers.md lists the reasons
	Retrying  Outcome = "retrying"  // its handler failed: it is stored and waits for its next attempt
	Dead      Outcome = "dead"      // it was given up: it is a dead letter
	Conflict  Outcome = "conflict"  // its id came before with another type or payload: it was not handled and is a dead letter
	Stale     Outcome = "stale"     // it lies below the consumer's position, and no row shows that it was handled: it is a dead letter
	Skipped   Outcome = "skipped"   // no node handles its type, and Config.UnknownType says to skip it
)

// States returns the state in which an event that came in was found, and the state in which this outcome left it, as the
// log and spans name them (from_state, to_state): "none" (nothing is kept of it), "stored" (it waits in the table stored), "handled" (its
// handler has run), "dead" (it is a dead letter), "skipped" (no node handles its type), "known" (it is settled or stored since an earlier
// delivery) or "unknown" (nothing was decided). Both are "unknown" for an outcome that is not one of the constants.
func (o Outcome) States() (from, to string) { return o.leaves(stateNone) }

// leaves is States for an event that was found in the state from.
func (o Outcome) leaves(from string) (found, left string) {
	switch o {
	case Handled:
		return from, stateHandled
	case Stored, Retrying:
		return from, stateStored
	case Dead, Stale:
		return from, stateDead
	case Skipped:
		return from, stateSkipped
	case Duplicate, Conflict:
		return stateKnown, stateKnown
	default:
		return stateUnknown, stateUnknown
	}
}

// Handler handles an event. Its writes on tx, and the row that says the event was handled, are one commit. It must not commit,
// roll back or keep tx. An error, a panic and runtime.Goexit are failures, which are retried as Config.Retry says. So is nil
// after its context has ended, or after a statement failed that no savepoint undid.
// retry.Permanent makes the event a dead letter at once; retry.After says when to try again.
//
// The context ends after Config.Timeout, and when the node has to release the event. A handler that does not return then loses
// its connection. A handler may run more than once for an event; earlier runs leave nothing in the database.
type Handler func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error

// BatchHandler is a Handler for several events of one type, in their order. Its error stands for all of them.
type BatchHandler func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error

// Errors that a program may want to tell apart.
var (
	// ErrOutcomeUnknown is returned when a COMMIT got no answer, and the database could not be asked what became of it. The
	// event may be handled or not. Sending it again is safe and finds out.
	ErrOutcomeUnknown = errors.New("outcome is unknown")

	// ErrHungHandlers is returned by the methods that run handlers (Run, Consume, ConsumeUntil, Receive, ReceiveTx, TryReceive) when
	// Config.MaxHung handlers have not returned. They are stuck, and each holds its memory. Restart the process.
	ErrHungHandlers = errors.New("too many handlers hang")

	// ErrConfiguration is returned when a setting can never work: by Consume and ConsumeUntil for a session time-out outside the brokers'
	// range, a topic or partition that does not exist (Until), or no handler at all; by every method that takes in or handles events for a wrong Option. The
	// error names the setting and what would work.
	ErrConfiguration = source.ErrConfiguration

	// ErrFull is returned by the methods that take in a single event (Receive, ReceiveTx, Store, StoreTx, TryReceive, TryStore)
	// when the event would have to be stored, and as many are stored as Config.MaxStored or Config.MaxStoredKey allow. Nothing
	// was written: send the event again later. Consume waits, and holds the partition meanwhile.
	ErrFull = failure.ErrFull

	// ErrInFlight is returned by TryReceive and TryStore while another of their calls handles the same event. Nothing was
	// decided: send the event again.
	ErrInFlight = failure.ErrInFlight
)

// fatal reports that an error ends Consume. Others are waited out.
func fatal(err error) bool {
	return errors.Is(err, ErrHungHandlers) || errors.Is(err, ErrConfiguration)
}
