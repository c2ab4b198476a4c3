package publishertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Memory is a publish.Publisher with a broker in memory, for tests that need neither, and to see what a Publisher has to do.
// Many goroutines may use it at once.
type Memory struct {
	// Refuse says which events the broker never takes. Nil means none. Set it before use.
	Refuse func(e holdfast.Event) bool

	// Down makes the broker one that gives no answer. Set it before use.
	Down bool

	mu     sync.Mutex
	topics map[string]*memoryTopic
}

type memoryTopic struct {
	partitions int
	log        []Stored
}

// CreateTopic makes an empty topic.
func (m *Memory) CreateTopic(name string, partitions int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics == nil {
		m.topics = map[string]*memoryTopic{}
	}
	m.topics[name] = &memoryTopic{partitions: partitions}
}

// Read returns all that a topic holds.
func (m *Memory) Read(topic string) []Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.topics[topic]; t != nil {
		return slices.Clone(t.log)
	}
	return nil
}

// Publish is for relay.Relay.
func (m *Memory) Publish(ctx context.Context, events []holdfast.Event) []error {
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
		answers[i] = m.append(ctx, e)
		if answers[i] != nil && e.Key != "" { // an event without a key has no order
			refused[q] = answers[i]
		}
	}
	return answers
}

// append writes one event.
func (m *Memory) append(ctx context.Context, e holdfast.Event) error {
	fail := func(fault publish.Fault, err error) error {
		return &publish.Error{Topic: e.Topic, Partition: -1, Fault: fault, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return fail(publish.FaultBroker, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.topics[e.Topic]
	switch {
	case m.Down:
		return fail(publish.FaultBroker, errors.New("no broker answers"))
	case t == nil:
		return fail(publish.FaultTopic, fmt.Errorf("topic %s does not exist: create it", e.Topic))
	case m.Refuse != nil && m.Refuse(e):
		return fail(publish.FaultRecord, errors.New("the broker does not take this event"))
	}
	r := publish.RecordOf(e)
	r.Value = bytes.Clone(r.Value) // it is the caller's
	t.log = append(t.log, Stored{Partition: lane.PartitionOf(e.Key, e.ID, t.partitions), Record: r})
	return nil
}
