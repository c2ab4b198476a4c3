package inbox

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast"
)

// delivery is an event that is being taken in.
type delivery struct {
	e       holdfast.Event
	hash    []byte       // that tells another payload under its id apart: SHA-256 of the payload, but where package webhook has another
	h       BatchHandler // nil for a type that is not handled here
	from    *origin      // nil unless it comes from Kafka
	manner  manner
	inDoubt bool   // a COMMIT got no answer: if the event is known now, that was ours
	start   int32  // which start of its handler is counted; 0 while none is
	after   func() // what the last step has to tell the observer once it has committed
}

// manner is how an event is taken in.
type manner int

const (
	mannerWait    manner = iota // in transactions of our own; another one that has the event is waited for
	mannerTry                   // in transactions of our own; another one that has the event ends it with ErrInFlight
	mannerCallers               // in the caller's transaction, which we must not make wait
)

// origin is where an event from Kafka comes from.
type origin struct {
	fence  *fence
	offset int64
}

// newDelivery is an event that comes in, with the handler of its type.
func (reg *registry) newDelivery(e holdfast.Event) *delivery { return reg.newDeliveryOf(e, nil) }

// newDeliveryOf is newDelivery with the hash that tells another payload apart; nil means that of the payload.
func (reg *registry) newDeliveryOf(e holdfast.Event, hash []byte) *delivery {
	d := &delivery{e: e, hash: hash, h: reg.handlers[e.Type]}
	if hash == nil {
		d.hash = d.payloadHash()
	}
	return d
}

// payloadHash is of all bytes: an edit of the event's letter leaves such a one in its row.
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

// epoch is the one under which an event from Kafka is taken in.
func (d *delivery) epoch() *int64 {
	if d.from == nil {
		return nil
	}
	return &d.from.fence.Epoch
}

// stale says that the event lies below what was settled when this node was given the partition. Before it was there is no
// fence: what is read then is only compared (checkpoint.go).
func (d *delivery) stale() bool {
	return d.from != nil && d.from.fence != nil && d.from.offset < d.from.fence.position
}

// errUnqueued is said where an event was to queue behind its key, but the queue has gone: run it again.
var errUnqueued = errors.New("the queue of its key has gone")

// is says whether a row with the hash is that of the event's payload.
func (d *delivery) is(hash []byte) bool {
	return bytes.Equal(hash, d.hash) || bytes.Equal(hash, d.payloadHash())
}

// intake is an event on its way to its outcome: what is tried next, and what was tried before. Of one goroutine at a time.
type intake struct {
	d    *delivery
	step step            // takes the event in instead of its handler, where it is not nil
	stop <-chan struct{} // closed when no more pauses are to be made; nil: never

	next     attemptFunc // nil before the first attempt
	h        history
	failures []string
	begun    time.Time
}

// newIntake begins the way of an event that comes alone. With a stop it waits for an absent database until that is closed.
func (env *env) newIntake(d *delivery, s step, stop <-chan struct{}) *intake {
	return &intake{d: d, step: s, stop: stop, h: history{quick: env.c.ImmediateRetries, decided: s != nil, patient: stop != nil}, begun: time.Now()}
}
