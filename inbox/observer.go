package inbox

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Observer receives what an Inbox does. Any field may be nil. The functions are called in line, by many goroutines at once, and
// must be quick. The events carry payloads: keep those out of logs.
type Observer struct {
	// OnHandle is called before a handler runs, with the context that the handler will have. The handler gets the context that it
	// returns, which must be made from the given one. ended is called once, when the handler has returned or was abandoned, with
	// its error; what becomes of the event then, OnReceive, OnRetry and OnDead say. Both must be quick.
	OnHandle func(ctx context.Context, h Handling) (handlers context.Context, ended func(err error))

	// OnStep is called when a step of a handler has ended (Step), in the handler's goroutine.
	OnStep func(Stepped)

	// OnReceive is called when an event's outcome is durable.
	OnReceive func(Received)

	// OnRetry is called when a handler has failed and will be tried again, in this process or from the table `stored`.
	OnRetry func(Retried)

	// OnDead is called when an event has become a dead letter.
	OnDead func(DeadLettered)

	// OnConflict is called when an id came again with another type or payload.
	OnConflict func(e holdfast.Event)

	// OnFull is called when an event from a partition could not be stored because too many are stored already. Its partition waits.
	// Each further attempt that finds no room calls it again.
	OnFull func(e holdfast.Event, err error)

	// OnUnknownType is called for the first event of a topic and type that this inbox skips, because no node handles the type
	// (UnknownSkip). OnReceive is called for each, with the outcome Skipped.
	OnUnknownType func(topic, eventType string)

	// OnErased is called when an event is settled without its handler, because the key of its payload was erased (ErasedSkip). An
	// attempt whose transaction is rolled back calls it too.
	OnErased func(e holdfast.Event)

	// OnHeld is called when a partition is held because its log does not hold the next offset to read (source.ErrOffsetOutOfRange, which err
	// wraps with what to do about it), and again at most every minute while it is. Epoch is 0 if this node has not claimed it yet.
	OnHeld func(p Assignment, err error)

	// OnHungHandler is called when a handler did not return in time and was abandoned. count is how many hang now.
	OnHungHandler func(e holdfast.Event, count int)

	// OnLeaseLost is called when a worker finished a stored event whose lease it had lost. Its work was rolled back.
	OnLeaseLost func(e holdfast.Event)

	// OnAssigned is called when this node was given a partition. It reads the partition from start.
	OnAssigned func(p Assignment, start int64)

	// OnReread is called after OnAssigned if start lies below the partition's position. offsets is how far below. Events there
	// were settled, and come again. Those whose row retention has removed become dead letters (Stale).
	OnReread func(p Assignment, offsets int64)

	// OnSettled is called when a partition's position was saved. Every offset below it is settled.
	OnSettled func(p Assignment, position int64)

	// OnRevoked is called when this node has released a partition. clean reports that nothing was left in progress.
	OnRevoked func(p Assignment, clean bool)

	// OnFenced is called when this node finds that another node has its partition, for example because this one was frozen for
	// longer than its session. A handler's transaction that is refused shows it, or a position, or the release of the partition.
	OnFenced func(p Assignment)

	// OnPolled is called after each look for stored events that are due, with how many this node got: what it costs to wait for them.
	OnPolled func(events int, took time.Duration)

	// OnCleaned is called when retention has removed rows of the inbox (Config.Retention). took is how long that took.
	OnCleaned func(rows int, took time.Duration)

	// OnError is called for errors that holdfast waits out: the database or the brokers cannot be reached.
	OnError func(err error)
}

// Assignment is a partition of a topic, with the epoch under which this node has it.
type Assignment struct {
	Topic     string
	Partition int
	Epoch     int64
}

// Handling is a run of a handler.
type Handling struct {
	Consumer      string
	Events        []holdfast.Event // one, or those of a batch
	Attempt       int              // starts of the handler for this event, this one included; 1 for a batch
	FromState     string           // "none", or "stored" for a retry: see Outcome.States
	CorrelationID string           // of the first event
	Partition     int              // from which the first event came; -1 if it did not come from one
	System        string           // the messaging system of that partition, as "kafka" (source.Named); "" without one
	Called        bool             // the context is that of a caller of Receive or ReceiveTx, who waits for the outcome
}

// The words of Outcome.States.
const (
	stateNone    = "none"    // nothing is kept of it
	stateStored  = "stored"  // it waits in the table stored
	stateHandled = "handled" // its handler has run
	stateDead    = "dead"    // it is a dead letter
	stateSkipped = "skipped" // no node handles its type
	stateKnown   = "known"   // it is settled or stored since an earlier delivery
	stateUnknown = "unknown" // nothing was decided
)

// Received is an event whose outcome is durable.
type Received struct {
	Context context.Context // the handler's as OnHandle returned it, else the caller's; it may have ended
	Event   holdfast.Event
	Outcome Outcome
	Attempt int           // starts of its handler, the last one included; 0 if it did not run
	Took    time.Duration // from its start to its commit; 0 if there was nothing to commit
}

// Retried is a failure that will be tried again.
type Retried struct {
	Context context.Context // as in Received
	Event   holdfast.Event
	Attempt int           // attempts that failed, with this one
	Delay   time.Duration // until the next attempt; by the database's clock if Stored
	Stored  bool          // the event is stored in Postgres
	Err     error
}

// DeadLettered is an event that became a dead letter.
type DeadLettered struct {
	Context  context.Context // as in Received
	Event    holdfast.Event
	Letter   int64
	Reason   string
	Attempts int
	Err      error
}
