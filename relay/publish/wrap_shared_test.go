package publish_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

// paced is a middleware that publishes so many calls at a time.
func paced(calls int) func(publish.Func) publish.Func {
	slots := make(chan struct{}, calls)
	return func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error {
			slots <- struct{}{}
			defer func() { <-slots }()
			return next(ctx, events)
		}
	}
}

// oneEach is so many batches of one event, each with its own key.
func oneEach(n int) [][]holdfast.Event {
	batches := make([][]holdfast.Event, n)
	for i := range batches {
		batches[i] = numbered(1)
		batches[i][0].Key, batches[i][0].ID = fmt.Sprint("key ", i), fmt.Sprint(i)
	}
	return batches
}

// publishTogether calls PublishTogether and returns the answers of each batch.
func publishTogether(ctx context.Context, p publish.Publisher, batches [][]holdfast.Event) [][]error {
	var mu sync.Mutex
	answers := make([][]error, len(batches))
	p.(publish.Gatherer).PublishTogether(ctx, batches, func(i int, errs []error) {
		mu.Lock()
		defer mu.Unlock()
		answers[i] = append(answers[i], errs...)
	})
	return answers
}

func TestWrapShared_APublishMiddlewareMayHoldASlotAcrossNext(t *testing.T) {
	for _, slots := range []int{1, 4, 50} {
		synctest.Test(t, func(t *testing.T) { // A middleware that waits for ever ends it with an error.
			b := &togetherBroker{Memory: memory()}
			began := time.Now()
			answers := publishTogether(t.Context(), publish.Wrap(b, paced(slots)), oneEach(50))
			took := time.Since(began)
			for i, errs := range answers {
				if !slices.Equal(errs, []error{nil}) {
					t.Errorf("%d slots, batch %d: answers %v", slots, i, errs)
				}
			}
			if b.together.Load() != 1 || b.alone.Load() != int64(50-slots) || len(b.Read("orders")) != 50 {
				t.Errorf("%d slots: %d calls together, %d alone, %d events; want 1, %d and 50", slots, b.together.Load(), b.alone.Load(), len(b.Read("orders")), 50-slots)
			}
			want := 20 * time.Millisecond // once, not for each
			if slots == 50 {
				want = 0
			}
			if took != want {
				t.Errorf("%d slots: %s, want %s", slots, took, want)
			}
		})
	}
}

func TestWrapShared_APublishMiddlewareMayHoldAMutexAcrossNext(t *testing.T) {
	var mu sync.Mutex
	b := &togetherBroker{Memory: memory()}
	p := publish.Wrap(b, func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error {
			mu.Lock()
			defer mu.Unlock()
			return next(ctx, events)
		}
	})
	answers := make(chan [][]error, 1)
	go func() { answers <- publishTogether(t.Context(), p, oneEach(50)) }()
	select {
	case got := <-answers:
		for i, errs := range got {
			if !slices.Equal(errs, []error{nil}) {
				t.Errorf("batch %d: answers %v", i, errs)
			}
		}
	case <-time.After(time.Minute): // sleep: a deadlock has no other sign
		t.Fatal("PublishTogether has not returned after a minute")
	}
	if n := len(b.Read("orders")); n != 50 {
		t.Errorf("%d events, want 50", n)
	}
}

func TestWrapShared_WhatIsSentTogetherHeedsItsContextUntilThen(t *testing.T) {
	for name, c := range map[string]struct {
		ends  time.Duration // of the first batch's own context
		says  string
		calls int64 // of the publisher alone
	}{
		"it ends before":     {5 * time.Millisecond, "context deadline exceeded", 1},
		"it ends afterwards": {15 * time.Millisecond, "", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := &togetherBroker{Memory: memory()}
			p := publish.Wrap(b, func(next publish.Func) publish.Func {
				return func(ctx context.Context, events []holdfast.Event) []error {
					if events[0].ID == "0" {
						ctx, cancel := context.WithTimeout(ctx, c.ends)
						defer cancel()
						return next(ctx, events)
					}
					time.Sleep(10 * time.Millisecond) // sleep: of the bubble's clock
					return next(ctx, events)
				}
			})
			answers := publishTogether(t.Context(), p, oneEach(3))
			if err := answers[0][0]; (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: the first batch has the answer %v, want %q", name, err, c.says)
			}
			if !slices.Equal(answers[1], []error{nil}) || !slices.Equal(answers[2], []error{nil}) || b.together.Load() != 1 || b.alone.Load() != c.calls {
				t.Errorf("%s: the others have %v and %v, %d calls together and %d alone", name, answers[1], answers[2], b.together.Load(), b.alone.Load())
			}
		})
	}
}

func TestWrapShared_NothingWaitsForOthersWhenTheCallHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		began := time.Now()
		answers := publishTogether(ctx, publish.Wrap(&togetherBroker{Memory: memory()}, paced(1)), oneEach(3))
		for i, errs := range answers {
			if len(errs) != 1 || !errors.Is(errs[0], context.DeadlineExceeded) {
				t.Errorf("batch %d: answers %v", i, errs)
			}
		}
		if took := time.Since(began); took != 5*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}

// forgetful is a publisher that answers for the first batch alone.
type forgetful struct{ *togetherBroker }

func (f forgetful) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(int, []error)) {
	answered(0, f.Memory.Publish(ctx, batches[0]))
}

func TestWrapShared_ABatchThatThePublisherForgetsIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		published, forgotten := 0, 0
		for i, errs := range publishTogether(t.Context(), publish.Wrap(forgetful{&togetherBroker{Memory: memory()}}), oneEach(3)) {
			switch {
			case slices.Equal(errs, []error{nil}):
				published++
			case len(errs) == 1 && strings.Contains(errs[0].Error(), "the publisher gave too few answers"):
				forgotten++
			default:
				t.Errorf("batch %d: answers %v", i, errs)
			}
		}
		if published != 1 || forgotten != 2 {
			t.Errorf("%d published, %d forgotten", published, forgotten)
		}
	})
}

// repetitive is a publisher that answers for each batch several times.
type repetitive struct{ *togetherBroker }

func (r repetitive) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(int, []error)) {
	for i, events := range batches {
		errs := r.Memory.Publish(ctx, events)
		for range 3 {
			answered(i, errs)
			synctest.Wait() // Its middleware has taken the first answer, and waits for no other.
		}
	}
}

// It may not, but then it must not wait for ever for somebody to take the others.
func TestWrapShared_ABatchThatIsAnsweredAgainKeepsItsFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, errs := range publishTogether(t.Context(), publish.Wrap(repetitive{&togetherBroker{Memory: memory()}}), oneEach(3)) {
			if !slices.Equal(errs, []error{nil}) {
				t.Errorf("batch %d: answers %v", i, errs)
			}
		}
	})
}

// A middleware that ends its goroutine, as a failing test does in its own fake, sends nothing: the others do not wait for it.
func TestWrapShared_AMiddlewareThatEndsItsGoroutineHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := publish.Wrap(&togetherBroker{Memory: memory()}, func(next publish.Func) publish.Func {
			return func(ctx context.Context, events []holdfast.Event) []error {
				runtime.Goexit()
				return nil
			}
		})
		for i, errs := range publishTogether(t.Context(), p, oneEach(2)) {
			if len(errs) > 1 || len(errs) == 1 && errs[0] == nil {
				t.Errorf("batch %d: answers %v", i, errs)
			}
		}
	})
}

// spreadBroker is a togetherBroker whose topics have partitions.
type spreadBroker struct {
	*togetherBroker
	mu         sync.Mutex
	partitions map[string]int
}

func (b *spreadBroker) Partition(e holdfast.Event) (partition, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	by := e.Key
	if by == "" {
		by = e.ID
	}
	h := fnv.New32a()
	h.Write([]byte(by))
	if partitions = b.partitions[e.Topic]; partitions > 0 {
		partition = int(h.Sum32() % uint32(partitions))
	}
	return partition, partitions
}

func TestWrapShared_APacedPublisherKeepsThePromises(t *testing.T) {
	b := &spreadBroker{togetherBroker: &togetherBroker{Memory: memory()}, partitions: map[string]int{}}
	publishertest.Run(t, publishertest.Options{
		Publisher: publish.Wrap(b, paced(1)),
		Topic: func(_ testing.TB, partitions int) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			topic := fmt.Sprint("topic-", len(b.partitions))
			b.partitions[topic] = partitions
			b.CreateTopic(topic, partitions)
			return topic
		},
		Read:        func(_ testing.TB, topic string) []publishertest.Stored { return b.Read(topic) },
		Refuse:      func(e holdfast.Event) holdfast.Event { e.Payload = []byte("refuse me"); return e },
		Missing:     "missing",
		Unreachable: publish.Wrap(&togetherBroker{Memory: &publishertest.Memory{Down: true}}, paced(1)),
	})
	if b.together.Load() == 0 || b.alone.Load() == 0 {
		t.Errorf("%d calls together and %d alone, want some of both", b.together.Load(), b.alone.Load())
	}
}
