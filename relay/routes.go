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
