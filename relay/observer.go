package relay

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast"
)

// Observer is notified of what a Relay does. Any field may be nil. The functions are called in line, from many goroutines at
// once, and must be quick. The events they get carry payloads: keep those out of logs.
type Observer struct {
	// OnClaimed is called when this relay has claimed a lane.
	OnClaimed func(Claimed)

	// OnReleased is called when a lane was handed back in order.
	OnReleased func(Released)

	// OnLost is called when a lane was dropped: another relay owns it, or this one claims it again soon.
	OnLost func(Lost)

	// OnPublish is called before each call of the publisher, with the context that the publisher will have. The publisher gets the
	// context that it returns, which must be made from the given one. ended is called once, with the publisher's answers: one for
	// each event, nil for those that were acknowledged. Both must be quick, and neither may keep the events. Where lanes share calls
	// of many partitions (Gatherer), it is called for each partition of each lane, and the publisher gets none of the contexts.
	OnPublish func(ctx context.Context, p Publishing) (publishers context.Context, ended func(errs []error))

	// OnPublished is called when the broker has acknowledged events.
	OnPublished func(Published)

	// OnWaiting is called when an event begins to wait in the queue of its key.
	OnWaiting func(Waiting)

	// OnResumed is called when the broker has acknowledged an event that waited.
	OnResumed func(Resumed)

	// OnDead is called when an event was given up: it is a dead letter.
	OnDead func(DeadLettered)

	// OnHeld is called when a topic or a partition waits before it is tried again: it refuses, or it does not answer in time.
	OnHeld func(Held)

	// OnPolled is called after each look at the log for all idle lanes: what it costs to wait for events.
	OnPolled func(Polled)

	// OnRead is called when a page of events was read from the log.
	OnRead func(Read)

	// OnSaved is called when cursors are durable.
	OnSaved func(Saved)

	// OnReclaimed is called when a relay tried to empty a segment of the log.
	OnReclaimed func(Reclaimed)

	// OnMoved is called when scheduled events fell due and were moved into the log.
	OnMoved func(Moved)
}

// Claimed is a lane that this relay owns now, and the epoch under which it does.
type Claimed struct {
	Lane  int
	Epoch int64
}

// Released is a lane that this relay handed back.
type Released struct {
	Lane int
}

// Lost is a lane that this relay dropped, and why.
type Lost struct {
	Lane   int
	Err    error
	Fenced bool // a write of this relay came too late and changed nothing: another relay owns the lane, or the database was restarted
}

// Publishing is a call of the publisher. Events belongs to the relay: copy what you keep.
type Publishing struct {
	Lane      int
	System    string // the messaging system, as "kafka" (Named)
	Topic     string
	Partition int // -1 when the publisher does not say
	Events    []holdfast.Event
	Attempts  []int // of each event: how often it was refused for itself, and this call; 1 for every event that did not wait
}

// Published is what the broker acknowledged in one call. Events belongs to the relay: copy what you keep.
type Published struct {
	Lane   int
	Events []holdfast.Event
}

// Waiting is an event that waits in the queue of its key.
type Waiting struct {
	Lane  int
	Event holdfast.Event
	Why   string // a reason of package waiting: failed, behind-event, topic or partition
	Err   error  // what the publisher answered
}

// Resumed is an event that was published out of the queue of its key.
type Resumed struct {
	Lane  int
	Event holdfast.Event
}

// DeadLettered is an event that was given up.
type DeadLettered struct {
	Lane   int
	Event  holdfast.Event
	Letter int64 // the dead letter's id
	Err    error // what the publisher answered last
}

// Held is a topic or a partition that waits before its events in a lane are tried again. All others go on, unless Fault is
// FaultBroker.
type Held struct {
	Lane      int
	Topic     string
	Partition int // -1 when the publisher does not say, or the whole topic waits
	Fault     Fault
	Err       error
	Wait      time.Duration
}

// Polled is one look at the log, for all lanes of a relay.
type Polled struct {
	Lanes int
	Found bool // some lane has unread events
	Took  time.Duration
}

// Read is one page of a lane's events.
type Read struct {
	Lane   int
	Events int
	Took   time.Duration
}

// Saved is one save of cursors.
type Saved struct {
	Lanes int
	Took  time.Duration
}

// Reclaimed is a segment of the log that a relay tried to empty. Result is what holdfast.reclaim answered: "emptied", "unread",
// "busy", or "refused: " and why.
type Reclaimed struct {
	Segment int
	Result  string
}

// Moved is how many scheduled events of a lane were moved into the log.
type Moved struct {
	Lane   int
	Events int
}
