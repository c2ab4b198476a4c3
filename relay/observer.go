package relay

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Observer is notified of what a Relay does. Any field may be nil. The functions are called in line, from many goroutines at
// once, and must be quick. The events they get carry payloads: keep those out of logs.
type Observer struct {
	// OnClaimed is called when this relay has claimed a lane, with the epoch under which it owns it.
	OnClaimed func(lane int, epoch int64)

	// OnReleased is called when a lane was handed back in order.
	OnReleased func(lane int)

	// OnLost is called when a lane was dropped, and err says why: another relay owns it, or this one claims it again soon. fenced says
	// that a write of this relay came too late and changed nothing: another relay owns the lane, or the database was restarted.
	OnLost func(lane int, fenced bool, err error)

	// OnPublish is called before each call of the publisher, with the context that the publisher will have. The publisher gets the
	// context that it returns, which must be made from the given one. ended is called once, with the publisher's answers: one for
	// each event, nil for those that were acknowledged. Both must be quick, and neither may keep the events. Where lanes share calls
	// of many partitions (publish.Gatherer), it is called for each partition of each lane, and the publisher gets none of the contexts.
	OnPublish func(ctx context.Context, p Publishing) (publishers context.Context, ended func(errs []error))

	// OnPublished is called when the broker has acknowledged the events of one call. They belong to the relay: copy what you keep.
	OnPublished func(lane int, events []holdfast.Event)

	// OnWaiting is called when an event begins to wait in the queue of its key.
	OnWaiting func(Waiting)

	// OnResumed is called when the broker has acknowledged an event that waited in the queue of its key.
	OnResumed func(lane int, e holdfast.Event)

	// OnDead is called when an event was given up: it is a dead letter.
	OnDead func(DeadLettered)

	// OnHeld is called when a topic or a partition waits before it is tried again: it refuses, or it does not answer in time.
	OnHeld func(Held)

	// OnPolled is called after each look at the log for all idle lanes: what it costs to wait for events. found says that some lane
	// has unread events.
	OnPolled func(lanes int, found bool, took time.Duration)

	// OnRead is called when a page of events of a lane was read from the log.
	OnRead func(lane, events int, took time.Duration)

	// OnSaved is called when the cursors of so many lanes are durable.
	OnSaved func(lanes int, took time.Duration)

	// OnReclaimed is called when a relay tried to empty a segment of the log. result is what holdfast.reclaim answered: "emptied",
	// "unread", "busy", or "refused: " and why.
	OnReclaimed func(segment int, result string)

	// OnMoved is called when so many scheduled events of a lane fell due and were moved into the log.
	OnMoved func(lane, events int)
}

// Publishing is a call of the publisher. Events belongs to the relay: copy what you keep.
type Publishing struct {
	Lane      int
	System    string // the messaging system, as "kafka" (publish.Named)
	Topic     string
	Partition int // -1 when the publisher does not say
	Events    []holdfast.Event
	Attempts  []int // of each event: how often it was refused for itself, and this call; 1 for every event that did not wait
}

// Waiting is an event that waits in the queue of its key.
type Waiting struct {
	Lane  int
	Event holdfast.Event
	Why   string // a reason of package waiting: failed, behind-event, topic or partition
	Err   error  // what the publisher answered
}

// DeadLettered is an event that was given up.
type DeadLettered struct {
	Lane   int
	Event  holdfast.Event
	Letter int64 // the dead letter's id
	Err    error // what the publisher answered last
}

// Held is a topic or a partition that waits before its events in a lane are tried again. All others go on, unless Fault is
// publish.FaultBroker.
type Held struct {
	Lane      int
	Topic     string
	Partition int // -1 when the publisher does not say, or the whole topic waits
	Fault     publish.Fault
	Err       error
	Wait      time.Duration
}
