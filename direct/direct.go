// Package direct delivers events without a broker: a relay hands them to inboxes, in the same Postgres or in others.
//
//	billing, err := inbox.New(pool, inbox.Config{Consumer: "billing", Schema: "billing"})
//	publisher, err := direct.New(map[string][]direct.Store{"orders": {billing}}, direct.Config{})
//	r, err := relay.New(pool, publisher, relay.Config{})
//	// r.Run and billing.Run, in one process or in two
//
// It is for teams that are not on Kafka yet. Guarantees are those with Kafka: an event is acknowledged once every inbox of its topic
// has stored it durably; a repeat is recognised by the inbox; the events of a topic and key are handled in their order. Handlers stay
// as they are when Kafka comes: give the relay a kafkago.Publisher, and call Consume in place of Run. Events that arrived in both
// ways are recognised.
//
// There is no log to read again. So an event of a type that no node of a consumer handles is not skipped by default: it waits, and what is
// after it in its topic too, for a node that does. A consumer of some types of a topic says so by inbox.UnknownSkip.
//
// What Kafka has and this has not: events are kept until they are handled, and no longer, so that a new consumer begins with new events;
// and the relay must reach the databases of all consumers.
package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/hook"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// Store takes an event in, durably, and leaves its handler to somebody else: *inbox.Inbox does. An event whose outcome is inbox.Skipped is
// not acknowledged, and holds its topic, unless the Store is an *inbox.Inbox whose Config.UnknownType says UnknownSkip.
type Store interface {
	Store(ctx context.Context, e holdfast.Event) (inbox.Outcome, error)
}

var _ Store = (*inbox.Inbox)(nil)

// Config configures a Publisher. The zero Config works.
type Config struct {
	// Partitions is how many events of a topic a lane of the relay stores at the same time, each with one connection. All events of a
	// key have one partition. Defaults to 4.
	Partitions int

	// Timeout bounds the storing of one event in one inbox. Defaults to 5 s.
	Timeout time.Duration
}

const (
	defaultPartitions = 4
	defaultTimeout    = 5 * time.Second
)

// Publisher is a relay.Publisher that stores events in inboxes. Many goroutines may use it at once.
type Publisher struct {
	c      Config
	routes map[string][]Store
	one    bool // all routes lead to one inbox
}

var (
	_ publish.Partitioner = (*Publisher)(nil)
	_ publish.Named       = (*Publisher)(nil)
)

// System names the messaging system for traces and metrics: "holdfast", as there is no other.
func (p *Publisher) System() string { return "holdfast" }

// New returns a publisher for these topics, each with the inboxes that get its events. A topic without a route is held by the relay, as
// one that is missing in Kafka; a topic whose events nobody wants has an empty list. The error names everything that is wrong.
func New(routes map[string][]Store, c Config) (*Publisher, error) {
	if found := problems(routes, c); len(found) > 0 {
		return nil, errors.Join(found...)
	}
	if c.Partitions == 0 {
		c.Partitions = defaultPartitions
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	p := &Publisher{c: c, routes: map[string][]Store{}}
	inboxes, unlike := map[Store]bool{}, 0
	for topic, stores := range routes {
		for _, s := range stores {
			if reflect.TypeOf(s).Comparable() {
				inboxes[s] = true
			} else {
				unlike++ // as a test's may be
			}
		}
		p.routes[topic] = append([]Store{}, stores...)
	}
	p.one = len(inboxes)+unlike <= 1
	return p, nil
}

// problems is everything that is wrong with the arguments of New.
func problems(routes map[string][]Store, c Config) (found []error) {
	if c.Partitions < 0 || c.Partitions > 64 {
		found = append(found, fmt.Errorf("direct config: partitions is %d: it must be between 1 and 64, or 0 for the default of %d", c.Partitions, defaultPartitions))
	}
	if c.Timeout < 0 {
		found = append(found, fmt.Errorf("direct config: timeout is %s: it must be positive, or 0 for the default of %s", c.Timeout, defaultTimeout))
	}
	if len(routes) == 0 {
		found = append(found, errors.New("direct routes are empty: they must name each topic that events have, with the inboxes that get its events"))
	}
	for _, topic := range slices.Sorted(maps.Keys(routes)) {
		if slices.Contains(routes[topic], nil) {
			found = append(found, fmt.Errorf("direct routes: an inbox of topic %s is nil: it must be one that has been made", topic))
		}
	}
	return found
}

// Partition is where an event goes: by its key, or by its id if it has none.
func (p *Publisher) Partition(e holdfast.Event) (partition, partitions int) {
	return lane.PartitionOf(e.Key, e.ID, p.c.Partitions), p.c.Partitions
}

// Publish stores the events, one after the other, each in all inboxes of its topic. It is for relay.Relay.
func (p *Publisher) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	var failed failures
	for i, e := range events {
		if first := failed.before(e); first != nil {
			answers[i] = &publish.Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     publish.FaultOf(first),
				NotSent:   true,
				Err:       first,
			}
			continue
		}
		answers[i] = p.store(ctx, e)
		failed.note(e, answers[i])
	}
	return answers
}

// store stores one event in the inboxes of its topic. Where only some have it, the next try finds it a duplicate there.
func (p *Publisher) store(ctx context.Context, e holdfast.Event) error {
	stores, routed := p.routes[e.Topic]
	if !routed {
		return &publish.Error{
			Topic:     e.Topic,
			Partition: -1,
			Fault:     publish.FaultTopic,
			Err:       errors.New("topic has no route: give it one in direct.New"),
		}
	}
	for _, s := range stores {
		bounded, cancel := context.WithTimeout(ctx, p.c.Timeout)
		stored, err := put(bounded, s, e)
		cancel()
		if err = foreign.Error(err); err != nil {
			return &publish.Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     faultOf(err, p.one),
				Err:       err,
			}
		}
		if !stored { // It waits in its topic for somebody who wants it: there is no log to read it from again.
			return &publish.Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     publish.FaultTopic,
				Err:       unknownType(s, e),
			}
		}
	}
	return nil
}

// put stores an event in an inbox. stored is false if no node handles its type, and nobody has asked to skip such events.
func put(ctx context.Context, s Store, e holdfast.Event) (stored bool, err error) {
	store, maySkip := s.Store, false
	if in, ok := s.(interface {
		Hooks() hook.Inbox[inbox.Outcome]
	}); ok {
		if hooks := in.Hooks(); hooks.SkipAsked {
			maySkip = true
		} else {
			store = hooks.StoreKept
		}
	}
	out, err := store(ctx, e)
	return out != inbox.Skipped || maySkip, err
}

// unknownType says what to do about an event that an inbox would skip.
func unknownType(s Store, e holdfast.Event) error {
	consumer := "the inbox"
	if in, ok := s.(interface{ Config() inbox.Config }); ok {
		consumer = "consumer " + in.Config().Consumer
	}
	return fmt.Errorf("no node of %s handles the type %q, so that its events of topic %s wait: start a node with a handler for it, "+
		"set inbox.Config.UnknownType to inbox.UnknownStore to take them in, or to inbox.UnknownSkip to drop them", consumer, e.Type, e.Topic)
}

// faultOf says what an inbox's error means. An inbox that is full or away holds what goes to it, and nothing else.
func faultOf(err error, one bool) publish.Fault {
	switch {
	case errors.Is(err, inbox.ErrFull):
		return publish.FaultTopic
	case retry.Classify(err) == retry.Validation:
		return publish.FaultRecord
	case one:
		return publish.FaultBroker
	default:
		return publish.FaultTopic
	}
}

// failures are the first errors of a call, for those that must not be sent after them.
type failures struct {
	keys   map[[2]string]error // by topic and key
	topics map[string]error
	all    error
}

func (f *failures) note(e holdfast.Event, err error) {
	switch publish.FaultOf(err) {
	case "":
	case publish.FaultBroker:
		f.all = err
	case publish.FaultRecord:
		if e.Key == "" { // it has no order
			return
		}
		if f.keys == nil {
			f.keys = map[[2]string]error{}
		}
		f.keys[[2]string{e.Topic, e.Key}] = err
	default:
		if f.topics == nil {
			f.topics = map[string]error{}
		}
		f.topics[e.Topic] = err
	}
}

// before is the error for which an event must not be sent, or nil.
func (f *failures) before(e holdfast.Event) error {
	switch {
	case f.all != nil:
		return f.all
	case f.topics[e.Topic] != nil:
		return f.topics[e.Topic]
	default:
		return f.keys[[2]string{e.Topic, e.Key}]
	}
}
