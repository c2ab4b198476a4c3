// Package publishertest checks that a publish.Publisher keeps its promises. Memory is one, and shows how little is needed.
//
//	func TestPublisher(t *testing.T) {
//		publishertest.Run(t, publishertest.Options{Publisher: mine, Topic: createTopic, Read: readTopic})
//	}
package publishertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Options are the Publisher under test and the broker behind it.
type Options struct {
	// Publisher is what is tested. Required.
	Publisher publish.Publisher

	// Topic makes an empty topic and returns its name. Required.
	Topic func(t testing.TB, partitions int) string

	// Read returns all that a topic holds, each partition's records in their order. Required.
	Read func(t testing.TB, topic string) []Stored

	// Refuse changes a good event so that the broker will never take it: makes it too large, say. Without it, what
	// Publisher promises about refusals is not checked.
	Refuse func(e holdfast.Event) holdfast.Event

	// Missing names a topic that does not exist. Empty leaves that check out.
	Missing string

	// Unreachable is a Publisher whose brokers give no answer. Nil leaves that check out.
	Unreachable publish.Publisher

	// Bound is how long a call of Publish may take at most, whatever the brokers do. Defaults to 30 s.
	Bound time.Duration
}

// Stored is a record in a topic's log.
type Stored struct {
	Partition int
	publish.Record
}

// Run checks everything, each promise in a subtest. Of a publish.Gatherer it checks the same of batches that are published
// together.
func Run(t *testing.T, o Options) {
	if o.Publisher == nil || o.Topic == nil || o.Read == nil {
		t.Fatal("publishertest: Publisher, Topic and Read are required")
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != nil && !c.needs(o) {
				t.Log("not checked: the option that it needs is not set")
				return
			}
			c.run(&suite{TB: t, o: o})
		})
	}
	if _, ok := o.Publisher.(publish.Gatherer); !ok {
		return
	}
	for _, c := range checks {
		if c.needs != nil && !c.needs(o) {
			continue // it has been said
		}
		t.Run("together: "+c.name, func(t *testing.T) { c.run(&suite{TB: t, o: o.together(t)}) })
	}
}

// together are the options for publishing by PublishTogether.
func (o Options) together(t testing.TB) Options {
	o.Publisher, _ = byTogether(t, o.Publisher)
	o.Unreachable, _ = byTogether(t, o.Unreachable)
	return o
}

// checks are the promises of publish.Publisher.
var checks = []struct {
	name  string
	run   func(s *suite)
	needs func(o Options) bool
}{
	{"events arrive as they were given", (*suite).eventsArriveAsGiven, nil},
	{"each event gets one answer", (*suite).oneAnswerEach, nil},
	{"the events of a key stay in order", (*suite).keysStayInOrder, nil},
	{"a key stays in one partition", (*suite).keysStayInPlace, nil},
	{"a refused event holds back its key", (*suite).refusalHoldsItsKey, canRefuse},
	{"a refused event holds back nothing else", (*suite).refusalHoldsNothingElse, canRefuse},
	{"a refusal is forgotten after the call", (*suite).refusalIsForgotten, canRefuse},
	{"a missing topic is the topic's fault", (*suite).missingTopic, func(o Options) bool { return o.Missing != "" }},
	{"an unreachable broker is no event's fault", (*suite).unreachable, func(o Options) bool { return o.Unreachable != nil }},
	{"a cancelled call says what arrived", (*suite).cancelled, nil},
	{"many goroutines publish at once", (*suite).concurrent, nil},
	{"the caller's events are not changed", (*suite).eventsUnchanged, nil},
}

func canRefuse(o Options) bool { return o.Refuse != nil }

// suite is one check.
type suite struct {
	testing.TB
	o Options
}

// probe is the type of the event by which a topic is found to be ready.
const probe = "publishertest.probe"

// topic makes a topic and waits until it takes events: a broker may need a moment.
func (s *suite) topic(partitions int) string {
	s.Helper()
	topic := s.o.Topic(s, partitions)
	for key := range 4 * partitions { // so that some key meets each partition
		s.publishAll([]holdfast.Event{{ID: fmt.Sprint("probe ", key), Type: probe, Topic: topic, Key: fmt.Sprint("probe ", key), Payload: []byte("probe")}})
	}
	return topic
}

// publish calls Publish and wants it to keep to Options.Bound.
func (s *suite) publish(ctx context.Context, p publish.Publisher, events []holdfast.Event) []error {
	s.Helper()
	bound := s.o.Bound
	if bound == 0 {
		bound = 30 * time.Second
	}
	answers := make(chan []error, 1)
	go func() { answers <- p.Publish(ctx, events) }()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case errs := <-answers:
		if len(errs) != len(events) {
			s.Fatalf("%d events have %d answers", len(events), len(errs))
		}
		return errs
	case <-timer.C:
		s.Fatalf("Publish has not returned after %s: it must be bounded in time by itself", bound)
	}
	return nil
}

// tries is how often a check begins that is about the answers of a single call.
const tries = 5

// undisturbed returns the answers of a call that are for what the check is about: it begins anew where one is the fault of the broker or of
// a partition, as a busy broker's is that does not answer in time. The answers of the last try are what they are.
func (s *suite) undisturbed(try func() []error) (answers []error) {
	s.Helper()
	for range tries {
		answers = try()
		if !slices.ContainsFunc(answers, func(err error) bool {
			fault := publish.FaultOf(err)
			return err != nil && (fault == publish.FaultBroker || fault == publish.FaultPartition)
		}) {
			break
		}
	}
	return answers
}

// patience is how long a broker may refuse good events. A busy machine may take minutes over a new topic.
const patience = 5 * time.Minute

// publishAll publishes until everything is acknowledged, as a relay does.
func (s *suite) publishAll(events []holdfast.Event) {
	s.Helper()
	for end := time.Now().Add(patience); len(events) > 0; {
		var left []holdfast.Event
		var last error
		for i, err := range s.publish(s.Context(), s.o.Publisher, events) {
			switch {
			case err == nil:
			case publish.FaultOf(err) == publish.FaultRecord:
				s.Fatalf("a good event is refused: %v", err)
			default:
				left, last = append(left, events[i]), err
			}
		}
		if events = left; last != nil && time.Now().After(end) {
			s.Fatalf("%d events are not acknowledged after %s: %v", len(events), patience, last)
		}
	}
}

// read returns a topic's events by partition, without the probes.
func (s *suite) read(topic string) map[int][]holdfast.Event {
	s.Helper()
	all := map[int][]holdfast.Event{}
	for _, r := range s.o.Read(s, topic) {
		e, err := wire.Read(topic, r.Key, r.Value, r.Headers, time.Time{})
		if err != nil {
			s.Fatalf("a record of %s: %v", topic, err)
		}
		if e.Type == probe {
			continue
		}
		if r.Key != nil && len(r.Key) == 0 {
			s.Errorf("event %s has no key, and its record an empty one: it must have none", e.ID)
		}
		all[r.Partition] = append(all[r.Partition], e)
	}
	return all
}

// ids are the events of a topic by key, in their order, each where it came first.
func (s *suite) ids(topic string) map[string][]string {
	s.Helper()
	byKey := map[string][]string{}
	for _, events := range s.read(topic) {
		for _, e := range events {
			if !slices.Contains(byKey[e.Key], e.ID) {
				byKey[e.Key] = append(byKey[e.Key], e.ID)
			}
		}
	}
	return byKey
}

// event is a good one.
func event(topic, id, key string) holdfast.Event {
	return holdfast.Event{
		ID:      id,
		Source:  "shop",
		Type:    "order.placed",
		Topic:   topic,
		Key:     key,
		Payload: []byte("p" + id),
		Headers: map[string]string{"tenant": "t" + id},
		Time:    time.Date(2026, 11, 23, 12, 0, 0, 123456000, time.UTC),
	}
}

// same compares two events.
func same(a, b holdfast.Event) bool {
	return a.ID == b.ID && a.Source == b.Source && a.Type == b.Type && a.Topic == b.Topic && a.Key == b.Key && a.Time.Equal(b.Time) &&
		(a.Payload == nil) == (b.Payload == nil) && slices.Equal(a.Payload, b.Payload) && maps.Equal(a.Headers, b.Headers)
}

// refused is an event that the broker will never take.
func (s *suite) refused(topic, id, key string) holdfast.Event {
	return s.o.Refuse(event(topic, id, key))
}

// wrapsAnother says whether err is another's error, wrapped.
func wrapsAnother(err, another error) bool {
	return err != nil && another != nil && errors.Is(err, another)
}
