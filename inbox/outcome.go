package inbox

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// Outcome says what has become of an event. It is durable when it is returned.
type Outcome string

// The outcomes.
const (
	Handled   Outcome = "handled"   // its handler ran, and committed
	Duplicate Outcome = "duplicate" // it was settled or stored before: nothing was done
	Stored    Outcome = "stored"    // it waits: behind earlier events of its key, for Run, or for a node that knows its type
	Retrying  Outcome = "retrying"  // its handler failed; it waits for its next attempt
	Dead      Outcome = "dead"      // it was given up: a dead letter has it
	Conflict  Outcome = "conflict"  // its id is known with another payload: not handled, a dead letter has it
	Stale     Outcome = "stale"     // it lies below the consumer's position, but nothing shows it was handled: a dead letter has it
	Skipped   Outcome = "skipped"   // nobody handles its type, and Config.UnknownType says to skip
)

// Handler does what an event asks for. Its writes on tx, and the record that the event was handled, are one commit. It
// must not commit or roll back tx, nor keep it. An error, a panic and runtime.Goexit are failures and are retried as
// Config.Retry says; retry.Permanent makes the event a dead letter at once, retry.After says when to try again. The
// context ends after Config.Timeout and when the node has to let go of the event: a handler that does not return then
// loses its connection. It may run more than once for an event, each time without a trace of the runs before.
type Handler func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error

// BatchHandler is a Handler for several events of one type at once, in their order. What it returns is said of all of
// them.
type BatchHandler func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error

// Errors that callers branch on.
var (
	// ErrOutcomeUnknown is returned when a COMMIT got no answer and the database could not be asked what became of it. The
	// event may be handled or not; sending it again finds out, and is safe.
	ErrOutcomeUnknown = errors.New("outcome is unknown")

	// ErrHungHandlers is returned by Receive, Run and Consume when Config.MaxHung handlers have not returned: something in
	// them is stuck for good, and each holds its memory. Restart the process.
	ErrHungHandlers = errors.New("too many handlers hang")

	// ErrConfiguration is returned by Consume when a setting can never work with the brokers it meets: a session time-out
	// outside their range. The error says which setting, and what would work.
	ErrConfiguration = errors.New("configuration")

	// ErrFull is returned by each method that takes a single event in (Receive, ReceiveTx, Store, StoreTx, TryReceive,
	// TryStore) when the event would have to wait, and as many wait as Config.MaxStored or Config.MaxStoredKey allow.
	// Nothing was written: send the event again later. Consume waits, and holds the partition meanwhile.
	ErrFull = errors.New("too many events are stored")

	// ErrInFlight is returned by TryReceive and TryStore when another of them is handling the same event. Nothing was
	// decided: send it again.
	ErrInFlight = errors.New("the event is being handled already")

	// ErrOffsetOutOfRange is returned by Consume when a partition's log does not hold the offset that is to be read next.
	ErrOffsetOutOfRange = errors.New("offset is out of range")
)

// fatal says which errors end Consume rather than be waited out.
func fatal(err error) bool {
	return errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrHungHandlers) || errors.Is(err, ErrConfiguration)
}
