package holdfasttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Kafka is a broker in memory: a relay publishes to it, and consumers take from it what was published. It is for tests of a service
// with its relay and consumers in one process; it has no network, no time-outs and no transactions. A topic must be made before it is
// used, as with a Kafka that makes none by itself. The zero Kafka is ready. Many goroutines may use it at once.
type Kafka struct {
	// RefuseFunc says which events the broker never takes, as one that is too large for it: the relay counts their attempts and gives
	// them up. Set it before use. Defaults to nil: it takes all.
	RefuseFunc func(e holdfast.Event) error

	mu     sync.Mutex
	down   bool
	topics map[string]*memoryTopic
	groups sourcetest.Memory // the same records, for consumers
}

type memoryTopic struct {
	partitions int
	events     []holdfast.Event
}

var _ publish.Partitioner = (*Kafka)(nil)

// CreateTopic makes an empty topic. It panics if there is one of that name.
func (k *Kafka) CreateTopic(name string, partitions int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.topics[name] != nil || partitions < 1 {
		panic(fmt.Sprintf("holdfasttest: create topic %s with %d partitions: it must be new and have at least one", name, partitions))
	}
	if k.topics == nil {
		k.topics = map[string]*memoryTopic{}
	}
	k.topics[name] = &memoryTopic{partitions: partitions}
	k.groups.CreateTopic(name, partitions)
}

// SetDown makes the broker one that answers nobody who publishes, or brings it back. Consumers go on with what is there.
func (k *Kafka) SetDown(down bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = down
}

// Published returns the events of a topic as a consumer gets them, in the order in which they came. A crash or a repeat of the relay may
// have brought one twice.
func (k *Kafka) Published(topic string) []holdfast.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.topics[topic]; t != nil {
		return slices.Clone(t.events)
	}
	return nil
}

// Source returns a source for inbox.Inbox.Consume: a consumer group that takes the events of topics, which must exist.
func (k *Kafka) Source(group string, topics ...string) inbox.Source {
	return k.groups.Source(group, topics...)
}

// Publish is for relay.Relay. Tests may call it to be another service: the events need an ID, a Type and a Topic.
func (k *Kafka) Publish(ctx context.Context, events []holdfast.Event) []error {
	type queue struct{ topic, key string }
	refused := map[queue]error{}
	answers := make([]error, len(events))
	for i, e := range events {
		q := queue{e.Topic, e.Key}
		if first := refused[q]; first != nil {
			answers[i] = &publish.Error{
				Topic:     e.Topic,
				Partition: -1,
				Fault:     publish.FaultOf(first),
				NotSent:   true,
				Err:       first,
			}
			continue
		}
		answers[i] = k.append(ctx, e)
		if answers[i] != nil && e.Key != "" { // an event without a key has no order
			refused[q] = answers[i]
		}
	}
	return answers
}

// Partition is where an event goes: by its key, or by its id if it has none.
func (k *Kafka) Partition(e holdfast.Event) (partition, partitions int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.topics[e.Topic]
	if t == nil {
		return 0, 0
	}
	return lane.PartitionOf(e.Key, e.ID, t.partitions), t.partitions
}

// append writes one event.
func (k *Kafka) append(ctx context.Context, e holdfast.Event) error {
	fail := func(fault publish.Fault, err error) error {
		return &publish.Error{Topic: e.Topic, Partition: -1, Fault: fault, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(publish.FaultBroker, err)
	}
	if k.RefuseFunc != nil {
		if err := k.RefuseFunc(e); err != nil {
			return fail(publish.FaultRecord, err)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.topics[e.Topic]
	switch {
	case k.down:
		return fail(publish.FaultBroker, errors.New("no broker answers"))
	case t == nil:
		return fail(publish.FaultTopic, fmt.Errorf("topic %s does not exist: create it", e.Topic))
	}
	r := source.Record{
		Value:   bytes.Clone(e.Payload),
		Headers: wire.Headers([]source.Header(nil), e),
		Time:    e.Time,
	}
	if e.Key != "" {
		r.Key = []byte(wire.RecordKey(e.Key))
	}
	read, err := wire.Read(e.Topic, r.Key, r.Value, r.Headers, r.Time)
	if err != nil {
		return fail(publish.FaultRecord, err)
	}
	t.events = append(t.events, read)
	k.groups.Produce(e.Topic, lane.PartitionOf(e.Key, e.ID, t.partitions), r)
	return nil
}
