package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// publishing is the key under which a context says that it was the observer's.
type publishing struct{}

// seeing is a publisher that refuses an event twice and asks for the observer's context.
type seeing struct {
	mu       sync.Mutex
	refusals int
	blind    bool
}

func (s *seeing) Publish(ctx context.Context, events []holdfast.Event) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = s.blind || ctx.Value(publishing{}) == nil
	errs := make([]error, len(events))
	for i, e := range events {
		if e.ID == "bad" && s.refusals < 2 {
			s.refusals++
			errs[i] = &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultRecord, Err: errors.New("planned")}
		}
	}
	return errs
}

func TestObserverPublish_EachCallOfThePublisherIsObservedWithItsAttempts(t *testing.T) {
	t.Parallel()
	pool := setup(t, 1)
	var mu sync.Mutex
	var said []string
	observer := relay.Observer{OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
		attempts, ids := slices.Clone(p.Attempts), []string{}
		for _, e := range p.Events {
			ids = append(ids, e.ID)
		}
		return context.WithValue(ctx, publishing{}, true), func(errs []error) {
			mu.Lock()
			defer mu.Unlock()
			for i, err := range errs {
				said = append(said, fmt.Sprintf("%s %s %s %d, attempt %d, refused %v", ids[i], p.System, p.Topic, p.Partition, attempts[i], err != nil))
			}
		}
	}}
	write(t, pool, holdfast.Event{ID: "good", Topic: "orders", Key: "a", Type: "x"}, holdfast.Event{ID: "bad", Topic: "orders", Key: "b", Type: "x"})
	b := &seeing{}
	run(t, pool, publish.Wrap(b), relay.Config{Observer: observer, Retry: retry.Policy{Attempts: 5, Base: time.Millisecond, Cap: time.Millisecond}})
	wait.Until(t, "both are published", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(said) >= 4
	})
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(said)
	want := []string{"bad kafka orders -1, attempt 1, refused true", "bad kafka orders -1, attempt 2, refused true", "bad kafka orders -1, attempt 3, refused false", "good kafka orders -1, attempt 1, refused false"}
	if !slices.Equal(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blind {
		t.Error("the publisher did not get the observer's context")
	}
}

// wideBroker has a partition for each key, and takes many of them in a call.
type wideBroker struct{ shared atomic.Int64 }

func (*wideBroker) Partition(e holdfast.Event) (partition, partitions int) {
	n, err := strconv.Atoi(e.Key)
	if err != nil {
		panic(err)
	}
	return n, 1000
}

func (*wideBroker) Publish(_ context.Context, events []holdfast.Event) []error {
	return make([]error, len(events))
}

func (b *wideBroker) PublishTogether(_ context.Context, batches [][]holdfast.Event, answered func(batch int, errs []error)) {
	b.shared.Add(1)
	for i := range batches {
		answered(i, make([]error, len(batches[i])))
	}
}

func TestObserverPublish_SharedCallsAreObservedForEachPartition(t *testing.T) {
	t.Parallel()
	pool := setup(t, 1)
	var mu sync.Mutex
	begun, ended := map[string]int{}, map[string]int{}
	observer := relay.Observer{OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
		mu.Lock()
		defer mu.Unlock()
		partitions, events := map[string]bool{}, slices.Clone(p.Events)
		for _, e := range events {
			begun[e.ID]++
			partitions[e.Key] = true
		}
		if len(partitions) != 1 || len(p.Attempts) != len(events) || p.Attempts[0] != 1 || fmt.Sprint(p.Partition) != events[0].Key {
			t.Errorf("a call of partition %d has the keys %v and the attempts %v", p.Partition, partitions, p.Attempts)
		}
		return ctx, func(errs []error) {
			mu.Lock()
			defer mu.Unlock()
			if len(errs) != len(events) {
				t.Errorf("%d answers for %d events", len(errs), len(events))
			}
			for _, e := range events {
				ended[e.ID]++
			}
		}
	}}
	const partitions, each = 200, 2
	var events []holdfast.Event
	for i := range partitions * each {
		events = append(events, holdfast.Event{ID: fmt.Sprint("e", i), Topic: "orders", Key: strconv.Itoa(i % partitions), Type: "x"})
	}
	write(t, pool, events...)
	b := &wideBroker{}
	run(t, pool, b, relay.Config{Observer: observer})
	wait.Until(t, "all are published", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ended) == len(events)
	})
	mu.Lock()
	defer mu.Unlock()
	for _, e := range events {
		if begun[e.ID] != 1 || ended[e.ID] != 1 {
			t.Errorf("%s was observed %d times when its call began, and %d times when it ended", e.ID, begun[e.ID], ended[e.ID])
		}
	}
	if b.shared.Load() == 0 {
		t.Error("no call was shared")
	}
}
