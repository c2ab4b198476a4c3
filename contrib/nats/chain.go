package natsjs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file keeps the order of a key: an event leaves when the one before it of its key is acknowledged. Chains of different keys go
// at the same time.
//
// Sending more of a key at once would be quicker, and wrong: the server stores a message although the one before it was refused, or was
// lost with a connection or a leader. Expecting the last sequence of a subject cannot help, because the sequence of a message is
// known only when it is acknowledged.

// chain is what a call has of one key, or one event without a key.
type chain struct {
	info   *topicInfo
	stop   *stop // of its partition
	at     place
	events []int // indexes in the order of the call
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int
}

// stop is the first failure that concerns more than a record. After it nothing more of its partition leaves in this call: each event
// would wait for as long.
type stop struct{ err atomic.Pointer[error] }

func (s *stop) set(err error) { s.err.CompareAndSwap(nil, &err) }

func (s *stop) get() error {
	if err := s.err.Load(); err != nil {
		return *err
	}
	return nil
}

// call is one call of Publish.
type call struct {
	p       *Publisher
	events  []holdfast.Event
	answers []error // each index belongs to one chain
	last    time.Time
	broker  stop
}

// errNoTime is why events are left for the next call.
var errNoTime = errors.New("the call has taken too long: the events that are left go with the next")

// divide makes the chains of a call. Events of topics that cannot be written to get their answers here.
func (c *call) divide(ctx context.Context) []*chain {
	type topic struct {
		info *topicInfo
		err  *publish.Error
	}
	type queue struct {
		place
		key string
	}
	topics, stops, keyed := map[string]topic{}, map[place]*stop{}, map[queue]*chain{}
	var chains []*chain
	for i, e := range c.events {
		t, asked := topics[e.Topic]
		if !asked {
			t.info, t.err = c.p.streams.lookup(ctx, e.Topic)
			topics[e.Topic] = t
		}
		if t.err != nil {
			c.answers[i] = t.err
			continue
		}
		at := place{e.Topic, partitionOf(e, t.info.partitions)}
		if e.Key != "" {
			if known := keyed[queue{at, e.Key}]; known != nil {
				known.events = append(known.events, i)
				continue
			}
		}
		if stops[at] == nil {
			stops[at] = &stop{}
		}
		one := &chain{info: t.info, stop: stops[at], at: at, events: []int{i}}
		if e.Key != "" {
			keyed[queue{at, e.Key}] = one
		}
		chains = append(chains, one)
	}
	return chains
}

// run sends the chains, some at the same time.
func (c *call) run(ctx context.Context, chains []*chain) {
	var next atomic.Int64
	work := func() {
		for {
			n := int(next.Add(1)) - 1
			if n >= len(chains) {
				return
			}
			c.send(ctx, chains[n])
		}
	}
	var workers sync.WaitGroup
	for range min(len(chains), c.p.config.MaxInFlight) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
}

// send sends a chain, event by event. After the first that is not acknowledged none leaves.
func (c *call) send(ctx context.Context, one *chain) {
	var failed error
	for _, i := range one.events {
		if failed == nil {
			failed = c.stopped(one)
		}
		if failed != nil {
			c.answers[i] = &publish.Error{
				Topic:     one.at.topic,
				Partition: one.at.partition,
				Fault:     publish.FaultOf(failed),
				NotSent:   true,
				Err:       failed,
			}
			continue
		}
		failed = c.p.send(ctx, one.info, one.at.partition, c.events[i])
		c.answers[i] = failed
		switch publish.FaultOf(failed) {
		case "", publish.FaultRecord:
		case publish.FaultBroker:
			c.broker.set(failed)
		default:
			one.stop.set(failed)
		}
	}
}

// stopped is why nothing more of a chain may leave; nil if it may.
func (c *call) stopped(one *chain) error {
	switch {
	case c.broker.get() != nil:
		return c.broker.get()
	case one.stop.get() != nil:
		return one.stop.get()
	case time.Now().After(c.last):
		return &publish.Error{
			Topic:     one.at.topic,
			Partition: one.at.partition,
			Fault:     publish.FaultPartition,
			Err:       errNoTime,
		}
	}
	return nil
}
