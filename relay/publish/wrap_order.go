package publish

import (
	"errors"

	"github.com/holdfast-go/holdfast"
)

// This file decides which of the events that a middleware was given it may publish now.

// errTooEarly is next's answer for an event that has to wait for an earlier one, which may be refused later.
var errTooEarly = errors.New("a publish middleware called next with an event before an earlier one of its key was published: the order of the key would break")

// followers gives what had to wait for an earlier event of its topic and key that failed the answer of that one, as a Publisher does.
func followers(events []holdfast.Event, answers []error) {
	failed := map[[2]string]error{}
	for i, e := range events {
		first, after := failed[[2]string{e.Topic, e.Key}]
		switch {
		case answers[i] == nil || e.Key == "":
		case !after:
			failed[[2]string{e.Topic, e.Key}] = answers[i]
		case errors.Is(answers[i], errTooEarly):
			answers[i] = &Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     FaultOf(first),
				NotSent:   true,
				Err:       first,
			}
		}
	}
}

// wrappedOrder is what must be before what, and how far it is published. Most middlewares make one call of next with all that they were
// given, in its order: that is compared and noted by place. The maps are made for any other call.
type wrappedOrder struct {
	given []wrappedID
	whole bool   // the first call of next has all of them, in their order
	took  []bool // which of them the publisher acknowledged in that call, by place; nil before it has answered

	events map[wrappedID]wrappedEvent // nil while there was no other call
	acked  map[wrappedID]bool

	steps int // of all walks along a queue: what the checks cost
}

// wrappedEvent is an event with its place among those of its topic and key.
type wrappedEvent struct {
	queue *wrappedQueue // nil without a key
	at    int           // in the queue
}

// wrappedQueue are the events of a topic and key.
type wrappedQueue struct {
	ids []wrappedID

	// Invariant: those before it are acknowledged. So an event is checked without a look at all that are before it.
	acked int
}

// wrappedID is what a middleware must not change.
type wrappedID struct{ source, id, topic, key string }

func identify(e holdfast.Event) wrappedID { return wrappedID{e.Source, e.ID, e.Topic, e.Key} }

func newWrappedOrder(events []holdfast.Event) *wrappedOrder {
	o := &wrappedOrder{given: make([]wrappedID, len(events))}
	for i := range events {
		o.given[i] = identify(events[i])
	}
	return o
}

// all says whether a call is the first one and has all events in their order, so that each may be sent.
func (o *wrappedOrder) all(events []holdfast.Event) bool {
	if o.whole || o.events != nil || len(events) != len(o.given) {
		return false
	}
	for i := range events {
		if identify(events[i]) != o.given[i] {
			return false
		}
	}
	o.whole = true
	return true
}

// ackAll says which events were acknowledged in the call that had all.
func (o *wrappedOrder) ackAll(answers []error) {
	o.took = make([]bool, len(answers))
	for i, err := range answers {
		o.took[i] = err == nil
	}
	if o.events != nil { // Another call has begun meanwhile.
		o.ackTaken()
	}
}

// ackTaken enters what the call that had all has acknowledged.
func (o *wrappedOrder) ackTaken() {
	for i, took := range o.took {
		if took {
			o.ackID(o.given[i])
		}
	}
}

// list makes the maps.
func (o *wrappedOrder) list() {
	o.events, o.acked = make(map[wrappedID]wrappedEvent, len(o.given)), make(map[wrappedID]bool, len(o.given))
	queues := map[[2]string]*wrappedQueue{}
	for _, id := range o.given {
		var given wrappedEvent
		if id.key != "" {
			q := queues[[2]string{id.topic, id.key}]
			if q == nil {
				q = &wrappedQueue{}
				queues[[2]string{id.topic, id.key}] = q
			}
			given.queue, given.at = q, len(q.ids)
			q.ids = append(q.ids, id)
		}
		if _, twice := o.events[id]; !twice { // A producer may write an ID twice.
			o.events[id] = given
		}
	}
	o.ackTaken()
}

// has says whether the event at a place was acknowledged.
func (o *wrappedOrder) has(place int) bool {
	if o.events == nil {
		return o.took != nil && o.took[place]
	}
	return o.acked[o.given[place]]
}

// ack says that an event was acknowledged.
func (o *wrappedOrder) ack(e holdfast.Event) { o.ackID(identify(e)) }

func (o *wrappedOrder) ackID(id wrappedID) {
	o.acked[id] = true
	if q := o.events[id].queue; q != nil {
		q.acked = o.walk(q, q.acked, nil)
	}
}

// walk goes along a queue as long as events are acknowledged or in sending, and returns where it ends.
func (o *wrappedOrder) walk(q *wrappedQueue, from int, sending map[wrappedID]bool) int {
	for ; from < len(q.ids) && (o.acked[q.ids[from]] || sending[q.ids[from]]); from++ {
		o.steps++
	}
	return from
}

// going is what one call of next sends.
type going struct {
	order   *wrappedOrder
	sending map[wrappedID]bool
	ends    map[*wrappedQueue]int // those before it are acknowledged or in sending
}

func (o *wrappedOrder) begin(events int) going {
	if o.events == nil {
		o.list()
	}
	return going{o, make(map[wrappedID]bool, events), map[*wrappedQueue]int{}}
}

// add adds an event to what the call sends, or says why it may not be sent now.
func (g going) add(e holdfast.Event) error {
	given, known := g.order.events[identify(e)]
	if !known {
		return errors.New("a publish middleware called next with an event that it was not given, or changed its topic or key")
	}
	q := given.queue
	if q == nil {
		g.sending[identify(e)] = true
		return nil
	}
	end := max(g.ends[q], q.acked)
	if given.at > end {
		return errTooEarly
	}
	g.sending[identify(e)] = true
	g.ends[q] = g.order.walk(q, end, g.sending)
	return nil
}
