package relay

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// sending is what a lane has queued for the publisher, and the calls that are under way. It decides when something can be sent,
// without clock, context or database; run's goroutine alone has it, but for answered.
//
// An event that may be sent stands in the queue of its destination, a partition, or a topic whose publisher names no partitions.
// A destination has one call at a time. So its events leave in order, and one that answers late, or never, delays no other. A
// destination is
//
//   - idle: nothing queued, no call;
//   - waiting: something is queued, and it waits for retryAt, for a slot (refused, refusedNoisy), or for the end of an outage;
//   - in a call: of its own, with a slot of the relay's calls until it is slow, or shared with other partitions.
//
// Invariants:
//
//   - calls is the number of destinations in a call, sharing that of those in a shared one.
//   - Of calls of their own at most maxCalls count at a time. One that takes longer than slowAfter counts no more.
//   - Where a route has queued events, its number of partitions does not change: a later event of a key must not go to another
//     queue than an earlier one.
//   - While there is an outage one call at a time finds out whether it is over.
type sending struct {
	partitioner publish.Partitioner // nil: the publisher names no partitions
	separator   string              // Config.TenantSeparator

	routes       map[string]*topicRoute
	destinations []*destination // in the order in which they were first met
	next         int            // the destination at which dispatch begins
	calls        int            // under way
	sharing      int            // of them, those that are shared
	refused      bool           // of a slot for a call: it waits for its turn
	refusedNoisy bool           // of a slot for a call with events of noisy tenants
	noisy        []string       // tenants whose events others overtake now; nil: none
	outage       *hold          // the broker cannot be reached: one call at a time, to see whether that is over

	answered answers // calls that have returned
}

func newSending(r *Relay) sending {
	return sending{
		partitioner: r.partitioner,
		separator:   r.c.TenantSeparator,
		routes:      map[string]*topicRoute{},
		answered:    answers{some: make(chan struct{}, 1)},
	}
}

// started counts a call.
func (s *sending) started(shared bool) {
	s.calls++
	if shared {
		s.sharing++
	}
}

// returned counts a call off.
func (s *sending) returned(shared bool) {
	s.calls--
	if shared {
		s.sharing--
	}
}

// quiet says that no call is under way, and that none waits for a slot.
func (s *sending) quiet() bool { return s.calls == 0 && !s.refused && !s.refusedNoisy }

// mayRoute says whether the topics of a page have the partitions that the lane goes by. When a topic has got others, its
// queued events are published first: a later event of a key must not go to another queue than an earlier one.
func (s *sending) mayRoute(p page) bool {
	if s.partitioner == nil {
		return true
	}
	topic := ""
	for i := range p.events {
		e := &p.events[i]
		if e.Topic == topic || e.malformed != "" {
			continue
		}
		topic = e.Topic
		_, partitions := s.partitioner.Partition(e.Event)
		if route := s.routes[topic]; route != nil && route.known && route.partitions != partitions {
			if route.queued > 0 {
				return false
			}
			route.partitions = partitions
		}
	}
	return true
}

// routeOf is the route of a topic.
func (s *sending) routeOf(topic string) *topicRoute {
	route := s.routes[topic]
	if route == nil {
		route = &topicRoute{topic: topic}
		s.routes[topic] = route
	}
	return route
}

// destinationOf is where an event goes: its partition, or its topic when the publisher does not say.
func (s *sending) destinationOf(e *logEvent) *destination {
	return s.destinationOn(s.routeOf(e.Topic), e)
}

// destinationOn is destinationOf for who has the route of the event's topic.
func (s *sending) destinationOn(route *topicRoute, e *logEvent) *destination {
	at := anyPartition
	if s.partitioner != nil && (e.malformed == "" || legalTopic(e.Topic)) {
		partition, partitions := s.partitioner.Partition(e.Event)
		if !route.known {
			route.known, route.partitions = true, partitions
		}
		if partitions > 0 && partitions == route.partitions {
			at = partition
		}
	}
	d := route.at(at)
	if d == nil {
		d = &destination{spot: spot{route.topic, at}, route: route}
		for len(route.destinations) <= at+1 {
			route.destinations = append(route.destinations, nil)
		}
		route.destinations[at+1] = d
		s.destinations = append(s.destinations, d)
	}
	return d
}

// destinationAt is the destination of a spot, nil when nothing was ever queued there.
func (s *sending) destinationAt(at spot) *destination { return s.routes[at.topic].at(at.partition) }

// sendAt is when dispatch can send something that it could not send before; zero when no time but an answer says so.
func (s *sending) sendAt(now time.Time) time.Time {
	retryAt, waits := s.firstRetry()
	switch {
	case !waits, s.refused: // its turn is announced
		return time.Time{}
	case s.outage != nil && s.calls > 0:
		return time.Time{}
	case s.outage != nil:
		return latest(s.outage.nextAt, retryAt)
	case s.slots(now) == 0:
		return s.nextSlow(now)
	}
	return retryAt
}

// firstRetry is the time from which on the first of the destinations that have something to send, and no call, may send
// it; zero for at once. waits is false if there is none.
func (s *sending) firstRetry() (at time.Time, waits bool) {
	for _, d := range s.destinations {
		if len(d.queue) > 0 && d.call == nil && !(s.refusedNoisy && s.isNoisy(d.queue[0])) && (!waits || d.retryAt.Before(at)) {
			at, waits = d.retryAt, true
		}
	}
	return at, waits
}

// slots is how many calls may be started now. Those that take so long that their partition is slow do not count.
func (s *sending) slots(now time.Time) int {
	slots := maxCalls - (s.calls - s.sharing)
	for _, d := range s.destinations {
		if d.call != nil && d.share == nil && now.Sub(d.began) >= slowAfter {
			slots++
		}
	}
	return slots
}

// nextSlow is when the oldest call that counts ceases to.
func (s *sending) nextSlow(now time.Time) (at time.Time) {
	for _, d := range s.destinations {
		if d.call == nil || d.share != nil || now.Sub(d.began) >= slowAfter {
			continue
		}
		at = soonest(at, d.began.Add(slowAfter))
	}
	return at
}

// anyQueued says whether a destination has something to send.
func (s *sending) anyQueued() bool {
	return slices.ContainsFunc(s.destinations, func(d *destination) bool { return len(d.queue) > 0 })
}

// isNoisy says whether an event is one of the log that others overtake now.
func (s *sending) isNoisy(p *pending) bool {
	return s.noisy != nil && p.row == nil && slices.Contains(s.noisy, tenantOf(p.event.Key, s.separator))
}

// freeSlow gives back the slots of calls that take so long that their partition is slow: others need not wait for it.
func (s *sending) freeSlow(now time.Time) {
	for _, d := range s.destinations {
		if d.call != nil && d.slot != nil && now.Sub(d.began) >= slowAfter {
			d.slot.give()
			d.slot = nil
		}
	}
}

// wide says whether more partitions than one waits for have something unacknowledged: then calls are shared.
func (s *sending) wide(from int) bool {
	n := 0
	for _, d := range s.destinations {
		if d.idle() {
			continue
		}
		if n++; n > from {
			return true
		}
	}
	return false
}
