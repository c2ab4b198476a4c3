// Package inbox takes events in and handles each once.
//
// An event is recorded in the table `inbox` in the transaction of its handler, so that the handler's writes and the
// record are one commit: a redelivery finds the record and runs nothing. What fails is parked in the table `stored` and
// tried again later, its key's later events behind it; what is given up becomes a row of `letter`.
//
//	in, err := inbox.New(pool, inbox.Config{Consumer: "billing"})
//	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { … })
//	group, err := kafkago.NewGroup(kafkago.Connection{Brokers: brokers}, kafkago.GroupConfig{GroupID: "billing", Topics: []string{"orders"}})
//	err = in.Consume(ctx, group)
//
// # Reading order
//
// receive.go and intake.go are one event's way, try.go that of senders who must not wait; chain.go and process.go run its
// handler in a transaction; decide.go says what becomes of a failure; failure.go writes that down, troubled.go says what is
// waited for; run.go, claim.go and stored.go work what was parked, stock.go bounds it. consume.go, partition.go, lineup.go,
// dispatch.go, crew.go, room.go, careful.go, tracker.go, fence.go and incarnation.go read Kafka, behind the interface in
// source.go that package kafkago implements. retention.go removes rows when they are no longer needed, at the pace of policy.go.
// watermark.go is for handlers that must not go back.
package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
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

	// ErrInFlight is returned by TryReceive and TryStore when another of them has the same event in hand. Nothing was
	// decided: send it again.
	ErrInFlight = errors.New("the event is in hand already")

	// ErrOffsetOutOfRange is returned by Consume when a partition's log does not hold the offset that is to be read next.
	ErrOffsetOutOfRange = errors.New("offset is out of range")
)

// Inbox takes events in for one consumer. It is safe for use by many goroutines at once, once its handlers are
// registered.
type Inbox struct {
	pool     *pgxpool.Pool
	c        Config
	sql      statements
	node     string
	handlers map[string]BatchHandler
	types    []string // of handlers, sorted; set when the inbox starts

	mu      sync.Mutex
	started bool // Invariant: handlers does not change once it is set.

	batched map[string]bool // types that HandleBatch registered

	careful sync.Mutex // after an unclean end one handler runs at a time, so that a crash has one suspect
	hung    atomic.Int64
	wakeup  chan struct{} // an event was stored here: Run need not wait for its next look
	stock   stock
	said    seldom

	unanswered unanswered
	random     func() float64
}

// New checks the configuration, all of it, and makes an Inbox. It does not touch the database.
func New(pool *pgxpool.Pool, c Config) (*Inbox, error) {
	c = c.withDefaults()
	err := c.validate()
	if pool == nil {
		err = errors.Join(errors.New("pool is nil: pass the *pgxpool.Pool of the database that the handlers write to"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox config: %w", err)
	}
	return &Inbox{
		pool: pool, c: c, sql: newStatements(c), node: rand.Text(),
		handlers: map[string]BatchHandler{},
		batched:  map[string]bool{},
		wakeup:   make(chan struct{}, 1),
		random:   mathrand.Float64,
	}, nil
}

// Handle registers the handler of a type. It panics when the type is empty or has a handler, and when the inbox has
// started: what is registered late would already have missed events.
func (in *Inbox) Handle(eventType string, h Handler) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.register(eventType, func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		for _, e := range events {
			if err := h(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// HandleBatch registers the handler of a type that takes up to Config.BatchSize events of a partition in one transaction, as
// many as have come by then. When a batch fails, for any reason, it is rolled back and its events come again one by one,
// so that the others do not suffer for the one that is to blame; the failure of the batch costs no attempt. Events that
// do not come from Kafka, and those tried again, come alone. It panics as Handle does.
func (in *Inbox) HandleBatch(eventType string, h BatchHandler) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.register(eventType, h)
	in.batched[eventType] = true
}

func (in *Inbox) register(eventType string, h BatchHandler) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.started:
		panic(fmt.Sprintf("inbox: handle %q: the inbox has started: register handlers before Receive, Run and Consume", eventType))
	case checkText("type", eventType, 1, 255) != nil:
		panic(fmt.Sprintf("inbox: handle %q: %v", eventType, checkText("type", eventType, 1, 255)))
	case in.handlers[eventType] != nil:
		panic(fmt.Sprintf("inbox: handle %q: the type has a handler already: register each once", eventType))
	}
	in.handlers[eventType] = h
}

// Config returns a copy of the inbox's configuration, with its defaults filled in.
func (in *Inbox) Config() Config { return in.c }

// start closes the registration.
func (in *Inbox) start() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.started {
		return
	}
	in.started = true
	in.types = make([]string, 0, len(in.handlers))
	for t := range in.handlers {
		in.types = append(in.types, t)
	}
	slices.Sort(in.types)
}

// wake tells Run that something was stored.
func (in *Inbox) wake() {
	select {
	case in.wakeup <- struct{}{}:
	default:
	}
}
