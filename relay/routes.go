package relay

import "fmt"

// A lane has a queue for each partition it publishes to. This file says which one an event goes to.

// spot is a partition, or a topic as a whole.
type spot struct {
	topic     string
	partition int
}

// String names it in errors.
func (s spot) String() string {
	if s.partition == wholeTopic {
		return "the topic " + s.topic
	}
	return fmt.Sprintf("partition %d of the topic %s", s.partition, s.topic)
}

// In place of a partition.
const (
	anyPartition = -1 // the publisher does not say which
	wholeTopic   = -2 // all that a topic has
)

// topicRoute is how the events of a topic are spread over its partitions. While some of them are queued the number of
// partitions that the lane goes by does not change: an event would overtake an earlier one of its key.
type topicRoute struct {
	topic        string
	known        bool           // the publisher was asked
	partitions   int            // 0 when the publisher does not know yet
	queued       int            // events of the log
	destinations []*destination // of partition n at n+1, and of anyPartition at 0; nil where nothing was queued yet
}

// at is the destination of a partition, nil when it has none.
func (t *topicRoute) at(partition int) *destination {
	if t == nil || partition < anyPartition || partition+1 >= len(t.destinations) {
		return nil
	}
	return t.destinations[partition+1]
}

// mayRoute says whether the topics of a page have the partitions that the lane goes by. When a topic has got others, its
// queued events are published first: a later event of a key must not go to another queue than an earlier one.
func (l *lane) mayRoute(p page) bool {
	if l.r.partitioner == nil {
		return true
	}
	topic := ""
	for i := range p.events {
		e := &p.events[i]
		if e.Topic == topic || e.malformed != "" {
			continue
		}
		topic = e.Topic
		_, partitions := l.r.partitioner.Partition(e.Event)
		if route := l.routes[topic]; route != nil && route.known && route.partitions != partitions {
			if route.queued > 0 {
				return false
			}
			route.partitions = partitions
		}
	}
	return true
}

// routeOf is the route of a topic.
func (l *lane) routeOf(topic string) *topicRoute {
	route := l.routes[topic]
	if route == nil {
		route = &topicRoute{topic: topic}
		l.routes[topic] = route
	}
	return route
}

// destinationOf is where an event goes: its partition, or its topic when the publisher does not say.
func (l *lane) destinationOf(e *logEvent) *destination { return l.destinationOn(l.routeOf(e.Topic), e) }

// destinationOn is destinationOf for who has the route of the event's topic.
func (l *lane) destinationOn(route *topicRoute, e *logEvent) *destination {
	at := anyPartition
	if l.r.partitioner != nil && (e.malformed == "" || legalTopic(e.Topic)) {
		partition, partitions := l.r.partitioner.Partition(e.Event)
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
		l.destinations = append(l.destinations, d)
	}
	return d
}

// destinationAt is the destination of a spot, nil when nothing was ever queued there.
func (l *lane) destinationAt(at spot) *destination { return l.routes[at.topic].at(at.partition) }

// holdOf is what an event is parked for; nil if it is parked for another reason.
func (l *lane) holdOf(p *pending) *hold {
	switch {
	case p.disposition == topicHeld:
		return l.holds[spot{p.item.queue.topic, wholeTopic}]
	case p.disposition == partitionDown && p.to != nil:
		return l.holds[p.to.spot]
	case p.disposition == partitionDown:
		return l.holds[l.destinationOf(p.event).spot]
	}
	return nil
}
