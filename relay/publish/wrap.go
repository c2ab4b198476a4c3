package publish

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Func is Publisher.Publish as a function.
type Func func(ctx context.Context, events []holdfast.Event) []error

// Wrap puts middleware around a publisher. The first is outermost. Use it in place of a type of your own around a Publisher: that would
// hide the methods of Partitioner, Gatherer, LanePublisher, Pinger and Named, and the relay would publish more slowly and hold more when a
// partition does not answer. What Wrap returns has those that p has, except that a LanePublisher has no PublishTogether then. Middleware runs
// around the calls of a lane's producer. Close p itself.
//
// Middleware may look, wait, change payloads and headers in copies of the events, refuse events with an error of their own, call next
// again for what failed, and call it with parts of the events in their order. It must not change their topics, keys, IDs or Sources. Of
// events that go to many partitions at once (Gatherer), it runs for each partition at the same time. What calls of next send within 20 ms
// of the first of them goes out together, and what is sent later by itself: so a middleware may hold a slot or a lock across next, and
// then its partitions share few requests. What is sent together has the context of the relay, not that of its call of next.
//
// Refuse an event with retry.Permanent: then its attempts are counted and its key waits, as for a record that the broker refuses. A plain
// error means what FaultOf says of it: that the broker cannot be reached, so the whole lane waits. Later events of a refused one's key
// may be given to next; they are not sent, and answered with its error, wrapped.
//
// Nothing is lost by a mistake. An event counts as published only if p has acknowledged it: nil for any other is an error, which holds
// what the event's partition has, without attempts spent. So are another number of answers, a panic, and a
// call of next with an event before an earlier one of its topic and key is published.
func Wrap(p Publisher, around ...func(next Func) Func) Publisher {
	w := &wrapper{publisher: p}
	w.outer = func(ctx context.Context, events []holdfast.Event) []error {
		call, ok := ctx.Value(publishKey{}).(*wrappedCall)
		if !ok {
			return refuseAll(events, errors.New("a publish middleware passed a context that was not made from its own"))
		}
		return call.publish(ctx, events)
	}
	for i := len(around) - 1; i >= 0; i-- {
		w.outer = around[i](w.outer)
	}
	pinger, pings := p.(Pinger)
	partitioner, partitions := p.(Partitioner)
	gatherer, gathers := p.(Gatherer)
	lanes, ofLanes := p.(LanePublisher)
	switch apart := (wrappedPartitioner{w, partitioner}); {
	case ofLanes && pings:
		return struct {
			wrappedLanes
			wrappedPing
		}{wrappedLanes{apart, lanes}, wrappedPing{pinger}}
	case ofLanes:
		return wrappedLanes{apart, lanes}
	case gathers && pings:
		return struct {
			wrappedGatherer
			wrappedPing
		}{wrappedGatherer{apart, gatherer}, wrappedPing{pinger}}
	case gathers:
		return wrappedGatherer{apart, gatherer}
	case partitions && pings:
		return struct {
			wrappedPartitioner
			wrappedPing
		}{apart, wrappedPing{pinger}}
	case partitions:
		return apart
	case pings:
		return struct {
			*wrapper
			wrappedPing
		}{w, wrappedPing{pinger}}
	}
	return w
}

// wrapper is a publisher with middleware.
type wrapper struct {
	publisher Publisher
	outer     Func
}

// System is that of the publisher.
func (w *wrapper) System() string {
	if named, ok := w.publisher.(Named); ok {
		return named.System()
	}
	return ""
}

func (w *wrapper) Publish(ctx context.Context, events []holdfast.Event) []error {
	return w.call(ctx, events, w.publisher.Publish)
}

// wrappedPing is the method of Pinger.
type wrappedPing struct{ pinger Pinger }

func (w wrappedPing) Ping(ctx context.Context) error { return w.pinger.Ping(ctx) }

// wrappedLanes is a LanePublisher: middleware is around the calls of its producers.
type wrappedLanes struct {
	wrappedPartitioner
	lanes LanePublisher
}

func (w wrappedLanes) OpenLane(schema string, lane int, epoch int64) LaneProducer {
	return wrappedLane{w.lanes.OpenLane(schema, lane, epoch), w.wrapper}
}

type wrappedLane struct {
	LaneProducer
	w *wrapper
}

func (l wrappedLane) Publish(ctx context.Context, events []holdfast.Event) []error {
	return l.w.call(ctx, events, l.LaneProducer.Publish)
}

type wrappedPartitioner struct {
	*wrapper
	partitioner Partitioner
}

func (w wrappedPartitioner) Partition(e holdfast.Event) (partition, partitions int) {
	return w.partitioner.Partition(e)
}

// refuseAll answers every event with one error, which holds what its partition has.
func refuseAll(events []holdfast.Event, err error) []error {
	answers := make([]error, len(events))
	for i, e := range events {
		answers[i] = &Error{Topic: e.Topic, Partition: -1, Fault: FaultPartition, Err: err}
	}
	return answers
}

type publishKey struct{}

// wrappedCall is one call through the middleware: what the publisher acknowledged, and what must be before what.
type wrappedCall struct {
	send Func

	mu     sync.Mutex
	order  *wrappedOrder
	events []holdfast.Event // as they were given
	over   bool             // the middleware has returned
}

func newWrappedCall(events []holdfast.Event, send Func) *wrappedCall {
	return &wrappedCall{send: send, events: events, order: newWrappedOrder(events)}
}

// publish sends what may be sent.
func (c *wrappedCall) publish(ctx context.Context, events []holdfast.Event) []error {
	c.mu.Lock()
	if !c.over && c.order.all(events) {
		c.mu.Unlock()
		return c.publishAll(ctx, events)
	}
	answers := make([]error, len(events))
	may := make([]holdfast.Event, 0, len(events))
	at := make([]int, 0, len(events))
	going := c.order.begin(len(events))
	for i, e := range events {
		err := going.add(e)
		if c.over {
			err = errors.New("a publish middleware called next after it had returned")
		}
		if err != nil {
			answers[i] = &Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     FaultPartition,
				NotSent:   true,
				Err:       err,
			}
			continue
		}
		may, at = append(may, e), append(at, i)
	}
	c.mu.Unlock()
	if len(may) == 0 {
		return answers
	}
	got := answered(may, c.send(ctx, may))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range may {
		if answers[at[i]] = got[i]; got[i] == nil {
			c.order.ack(e)
		}
	}
	return answers
}

// publishAll is publish of a call with all events in their order, before which there was none.
func (c *wrappedCall) publishAll(ctx context.Context, events []holdfast.Event) []error {
	answers := answered(events, c.send(ctx, events))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.order.ackAll(answers)
	return answers
}

// answered are the publisher's answers, safe to be read, and one for each event.
func answered(events []holdfast.Event, got []error) []error {
	answers := foreign.Errors(got)
	if len(answers) > len(events) {
		return answers[:len(events)]
	}
	for i := len(answers); i < len(events); i++ {
		answers = append(answers, &Error{
			Topic:     events[i].Topic,
			Partition: -1,
			Fault:     FaultPartition,
			Err:       errors.New("the publisher gave too few answers"),
		})
	}
	return answers
}

// call runs the middleware, and believes no answer that the publisher did not give.
func (w *wrapper) call(ctx context.Context, events []holdfast.Event, send Func) (answers []error) {
	c := newWrappedCall(events, send)
	defer func() {
		switch v := recover().(type) {
		case nil:
		case runtime.Error:
			answers = refuseAll(events, fmt.Errorf("a publish middleware panicked: %w", foreign.Error(v)))
		default: // Its text may be an event's.
			answers = refuseAll(events, fmt.Errorf("a publish middleware panicked with a value of type %T", v))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.over = true
		answers = c.verdict(answers)
	}()
	return w.outer(context.WithValue(ctx, publishKey{}, c), events)
}

// verdict is what the answers of the middleware amount to.
func (c *wrappedCall) verdict(answers []error) []error {
	if len(answers) != len(c.events) {
		return refuseAll(c.events, fmt.Errorf("a publish middleware gave %d answers for %d events", len(answers), len(c.events)))
	}
	answers = foreign.Errors(answers)
	for i, e := range c.events {
		if answers[i] == nil && !c.order.has(i) {
			answers[i] = &Error{Topic: e.Topic, Partition: -1, Fault: FaultPartition,
				Err: errors.New("a publish middleware answered nil for an event that the broker did not acknowledge")}
		}
	}
	followers(c.events, answers)
	return answers
}
