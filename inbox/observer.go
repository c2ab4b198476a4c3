package inbox

import (
	"time"

	"github.com/holdfast-go/holdfast"
)

// Observer receives what an Inbox does. Any field may be nil. The functions are called in line, from many goroutines, and
// must be quick. The events they are given carry payloads: keep those out of logs.
type Observer struct {
	// OnReceive is called when an event's outcome is durable.
	OnReceive func(Received)

	// OnRetry is called when a handler failed and will be tried again, in this process or out of `stored`.
	OnRetry func(Retried)

	// OnDead is called when an event became a dead letter.
	OnDead func(DeadLettered)

	// OnConflict is called when an id came a second time with another payload.
	OnConflict func(e holdfast.Event)

	// OnFull is called when an event from Kafka could not be stored because too many are: its partition is held. It is
	// called again for every further try.
	OnFull func(e holdfast.Event, err error)

	// OnHungHandler is called when a handler did not return in time and was left behind. Count is how many are now.
	OnHungHandler func(e holdfast.Event, count int)

	// OnLeaseLost is called when a worker finished a stored event that no longer was its own: its work was rolled back.
	OnLeaseLost func(e holdfast.Event)

	// OnAssigned is called when this node was given a partition and will read it from start.
	OnAssigned func(p Assignment, start int64)

	// OnReread is called after OnAssigned when start lies below the partition's position, and by how many offsets: what was
	// settled there is met again. Those whose row retention has removed become letters, Stale.
	OnReread func(p Assignment, offsets int64)

	// OnSettled is called when a partition's position was saved: every offset below it is settled.
	OnSettled func(p Assignment, position int64)

	// OnRevoked is called when this node has let go of a partition. Clean says that nothing was left in progress.
	OnRevoked func(p Assignment, clean bool)

	// OnFenced is called when this node finds that another has its partition, say because it was frozen for longer than
	// its session: by a handler's transaction that was refused, by its position, or when it lets go of the partition.
	OnFenced func(p Assignment)

	// OnCleaned is called when rows of the inbox were removed because nobody needs them any more (Config.Retention), and how
	// long that took.
	OnCleaned func(rows int, took time.Duration)

	// OnError is called for errors that holdfast waits out: the database or the broker cannot be reached.
	OnError func(err error)
}

// Assignment is a partition of a topic, and the epoch under which this node had it.
type Assignment struct {
	Topic     string
	Partition int
	Epoch     int64
}

// Received tells of one event whose outcome is durable.
type Received struct {
	Event   holdfast.Event
	Outcome Outcome
	Took    time.Duration // from its start to its commit; 0 where there was nothing to commit
}

// Retried tells of a failure that will be tried again.
type Retried struct {
	Event   holdfast.Event
	Attempt int           // tries that failed, this one included
	Delay   time.Duration // until the next, by the database's clock when Stored
	Stored  bool          // the event was parked in Postgres
	Err     error
}

// DeadLettered is an event that was given up.
type DeadLettered struct {
	Event    holdfast.Event
	Letter   int64
	Reason   string
	Attempts int
	Err      error
}
