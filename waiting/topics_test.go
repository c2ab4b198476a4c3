package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// topics is a Publisher to which some topics are missing.
type topics struct {
	mu      sync.Mutex
	missing []string
	got     []holdfast.Event
	enter   func(events []holdfast.Event) // before the answer, without the lock
}

func (to *topics) Publish(_ context.Context, events []holdfast.Event) []error {
	to.mu.Lock()
	enter := to.enter
	to.mu.Unlock()
	if enter != nil {
		enter(events)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	errs := make([]error, len(events))
	for i, e := range events {
		if slices.Contains(to.missing, e.Topic) {
			errs[i] = &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultTopic, Err: errors.New("the topic is missing")}
			continue
		}
		to.got = append(to.got, e)
	}
	return errs
}

func (to *topics) miss(missing ...string) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.missing = missing
}

func (to *topics) onCall(enter func(events []holdfast.Event)) {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.enter = enter
}

// published are the payloads of a topic, by key, in order.
func (to *topics) published(topic string) map[string][]string {
	to.mu.Lock()
	defer to.mu.Unlock()
	all := map[string][]string{}
	for _, e := range to.got {
		if e.Topic == topic {
			all[e.Key] = append(all[e.Key], string(e.Payload))
		}
	}
	return all
}

func (to *topics) count() int {
	to.mu.Lock()
	defer to.mu.Unlock()
	return len(to.got)
}

// of makes n events of a topic, of so many keys, with the payloads from, from+1, ….
func of(topic string, keys, from, n int) (events []holdfast.Event) {
	for i := from; i < from+n; i++ {
		events = append(events, holdfast.Event{Topic: topic, Key: fmt.Sprint("k", i%keys), Type: "t", Payload: fmt.Appendf(nil, "%s %06d", topic, i)})
	}
	return events
}

// wantKeys checks that every key has exactly the payloads of these events, in order.
func wantKeys(t testing.TB, got map[string][]string, events ...holdfast.Event) {
	t.Helper()
	want := map[string][]string{}
	for _, e := range events {
		want[e.Key] = append(want[e.Key], string(e.Payload))
	}
	for key := range want {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("key %s has %s, want %s", key, some(got[key]), some(want[key]))
		}
	}
	if len(got) != len(want) {
		t.Errorf("there are %d keys, want %d", len(got), len(want))
	}
}

func some(all []string) string {
	if len(all) > 12 {
		return fmt.Sprintf("%d: %q … %q", len(all), all[:6], all[len(all)-6:])
	}
	return fmt.Sprintf("%d: %q", len(all), all)
}
