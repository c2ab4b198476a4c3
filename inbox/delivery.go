package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
)

// delivery is an event that is being taken in.
type delivery struct {
	e       holdfast.Event
	hash    []byte       // differs for another type or payload under the same id: eventHash, unless package webhook gave another
	h       BatchHandler // nil for a type that this node does not handle
	from    *origin      // nil unless the event comes from Kafka
	manner  manner
	inDoubt bool            // a COMMIT got no answer: if the event is known now, that COMMIT was carried out
	start   int32           // which start of its handler is counted; 0 if none is
	counted bool            // among the stored events, by quota.enter
	suspect bool            // its handler was started before, and the process ended
	took    time.Duration   // of its handler, in the last group that it was in; 0: it was not begun there
	after   func()          // what to report once the last task has committed
	attempt int             // starts of its handler, the last one included
	ctx     context.Context // of the last run of its handler, else of the caller; nil: none. For the Observer and the log only
}

// context is what to report the event in.
func (d *delivery) context() context.Context {
	if d.ctx == nil {
		return context.Background()
	}
	return d.ctx
}

// manner says how an event is taken in.
type manner int

const (
	mannerWait    manner = iota // in a transaction of its own; waits for another transaction that has the event
	mannerTry                   // in a transaction of its own; another one that has the event means ErrInFlight
	mannerCallers               // in the caller's transaction, which must not wait for locks of a key
)

// origin says where in Kafka an event comes from.
type origin struct {
	fence  *position.Fence
	offset int64
}

// newDelivery is an event with the handler of its type.
func (reg *registry) newDelivery(e holdfast.Event) *delivery { return reg.newDeliveryOf(e, nil) }

// newDeliveryOf is newDelivery with a hash that differs for another payload. nil stands for that of type and payload.
func (reg *registry) newDeliveryOf(e holdfast.Event, hash []byte) *delivery {
	d := &delivery{e: e, hash: hash, h: reg.handlers[e.Type]}
	if hash == nil {
		d.hash = d.eventHash()
	}
	return d
}

// eventHash covers the type and all bytes of the payload. A producer that gives one id to two events of different types has made a
// mistake, even if their payloads are equal: neither may pass for the other.
func (d *delivery) eventHash() []byte {
	h := sha256.New()
	h.Write([]byte(d.e.Type))
	h.Write([]byte{0}) // No type holds it.
	h.Write(d.e.Payload)
	return h.Sum(nil)
}

// payloadHash covers all bytes of the payload. A row has this hash when a person has edited the event's dead letter, and when it
// was written before hashes covered the type.
func (d *delivery) payloadHash() []byte {
	sum := sha256.Sum256(d.e.Payload)
	return sum[:]
}

func (d *delivery) partition() *int32 {
	if d.from == nil {
		return nil
	}
	p := int32(d.from.fence.Partition)
	return &p
}

func (d *delivery) offset() *int64 {
	if d.from == nil {
		return nil
	}
	return &d.from.offset
}

// fence is that of the partition that the event comes from; nil for an event that does not come from Kafka.
func (d *delivery) fence() *position.Fence {
	if d.from == nil {
		return nil
	}
	return d.from.fence
}

// locks reports that the lock of the event's key is taken before it joins the key's queue.
func (d *delivery) locks() bool { return d.e.Key != "" && d.manner != mannerCallers }

// stale reports that the event lies below the position that the partition had when this node was given it. Records that are
// read before that have no fence: checkpoint.go only compares them.
func (d *delivery) stale() bool {
	return d.from != nil && d.from.fence != nil && d.from.offset < d.from.fence.Position
}

// errUnqueued means that an event was to join the queue of its key, but the queue is empty by now: run the event instead.
var errUnqueued = errors.New("the queue of its key has gone")

// is reports whether a row's hash is that of this event.
func (d *delivery) is(hash []byte) bool {
	content, version := splitHash(hash)
	ours, ourVersion := splitHash(d.hash)
	if len(version) > 0 && len(ourVersion) > 0 && !bytes.Equal(version, ourVersion) {
		return true // A provider writes one event in two versions (hook.Inbox), which cannot be compared.
	}
	return bytes.Equal(content, ours) || bytes.Equal(hash, d.payloadHash())
}

// splitHash divides a hash of hook.Inbox. Rows that are older than versions have none.
func splitHash(hash []byte) (content, version []byte) {
	n := min(len(hash), sha256.Size)
	return hash[:n], hash[n:]
}

// intake is an event on its way to its outcome: what is tried next, and what was tried before. One goroutine at a time uses it.
type intake struct {
	d    *delivery
	task task            // replaces the handler; nil: the handler runs
	stop <-chan struct{} // when closed, delays end and nothing more is tried; nil: never

	next     attemptFunc // nil before the first attempt
	h        failure.History
	failures []string
	refused  int // how often Postgres refused what was decided
	begun    time.Time
}

// newIntake is an event that comes alone. With a stop channel it waits as long as the database is away.
func (env *env) newIntake(d *delivery, s task, stop <-chan struct{}) *intake {
	return &intake{
		d:    d,
		task: s,
		stop: stop,
		h: failure.History{
			Quick:     env.c.ImmediateRetries,
			Decided:   s != nil,
			WaitsLong: stop != nil,
		},
		begun: time.Now(),
	}
}
