package publishertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// inMemory are the options for a Memory.
func inMemory() (*Memory, Options) {
	m := &Memory{Refuse: func(e holdfast.Event) bool { return string(e.Payload) == "refuse me" }}
	var mu sync.Mutex
	made := 0
	return m, Options{
		Publisher: m,
		Topic: func(_ testing.TB, partitions int) string {
			mu.Lock()
			defer mu.Unlock()
			made++
			topic := fmt.Sprint("topic-", made)
			m.CreateTopic(topic, partitions)
			return topic
		},
		Read:        func(_ testing.TB, topic string) []Stored { return m.Read(topic) },
		Refuse:      func(e holdfast.Event) holdfast.Event { e.Payload = []byte("refuse me"); return e },
		Missing:     "missing",
		Unreachable: &Memory{Down: true},
		Bound:       5 * time.Second,
	}
}

func TestPublisherTest_MemoryKeepsThePromises(t *testing.T) {
	_, o := inMemory()
	Run(t, o)
}

// A busy broker gives no answer in time now and then: here to every second call of more than one event.
func TestPublisherTest_ABrokerThatIsBusyNowAndThenBreaksNoPromise(t *testing.T) {
	m, o := inMemory()
	var calls atomic.Int64
	o.Publisher = publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
		if len(events) < 2 || calls.Add(1)%2 == 0 {
			return m.Publish(ctx, events)
		}
		err := &publish.Error{Topic: "orders", Partition: -1, Fault: publish.FaultBroker, Err: errors.New("no answer in time")}
		return slices.Repeat([]error{err}, len(events))
	})
	Run(t, o)
}

// record runs all checks and returns what each that failed reported.
func record(t *testing.T, o Options) map[string][]string {
	failed := map[string][]string{}
	for _, c := range checks {
		if reports := ending.Reports(t, func(t testing.TB) { c.run(&suite{TB: t, o: o}) }); len(reports) > 0 {
			failed[c.name] = reports
		}
	}
	return failed
}

// publishFunc is a Publisher of a function.
type publishFunc func(ctx context.Context, events []holdfast.Event) []error

func (f publishFunc) Publish(ctx context.Context, events []holdfast.Event) []error {
	return f(ctx, events)
}

// alone publishes each event in a call of its own.
func alone(ctx context.Context, p publish.Publisher, events []holdfast.Event) []error {
	var errs []error
	for i := range events {
		errs = append(errs, p.Publish(ctx, events[i:i+1])...)
	}
	return errs
}

// changed publishes events that were changed.
func changed(change func(e *holdfast.Event)) func(m *Memory) publish.Publisher {
	return func(m *Memory) publish.Publisher {
		return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
			events = slices.Clone(events)
			for i := range events {
				change(&events[i])
			}
			return m.Publish(ctx, events)
		})
	}
}

// answered changes the answers.
func answered(change func(events []holdfast.Event, errs []error) []error) func(m *Memory) publish.Publisher {
	return func(m *Memory) publish.Publisher {
		return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
			return change(events, m.Publish(ctx, events))
		})
	}
}

func TestPublisherTest_EveryInjectedBugIsReported(t *testing.T) {
	var remembered sync.Map
	turn := 0
	for _, bug := range []struct {
		name   string
		inject func(m *Memory) publish.Publisher
		check  string // that reports it, at least
	}{
		{"a tombstone becomes an empty payload", changed(func(e *holdfast.Event) {
			if e.Payload == nil {
				e.Payload = []byte{}
			}
		}), "events arrive as they were given"},
		{"headers are lost", changed(func(e *holdfast.Event) { e.Headers = nil }), "events arrive as they were given"},
		{"the source is lost", changed(func(e *holdfast.Event) { e.Source = "" }), "events arrive as they were given"},
		{"the time is the publisher's", changed(func(e *holdfast.Event) { e.Time = time.Now() }), "events arrive as they were given"},
		{"an event is acknowledged and not written", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				return append(m.Publish(ctx, events[:max(0, len(events)-1)]), make([]error, min(1, len(events)))...)
			})
		}, "events arrive as they were given"},
		{"one answer a call", answered(func(_ []holdfast.Event, errs []error) []error { return []error{errors.Join(errs...)} }), "each event gets one answer"},
		{"no answer for the last event of a long call", answered(func(_ []holdfast.Event, errs []error) []error {
			if len(errs) > 50 {
				return errs[:len(errs)-1]
			}
			return errs
		}), "each event gets one answer"},
		{"events are sent backwards", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				back := slices.Clone(events)
				slices.Reverse(back)
				errs := m.Publish(ctx, back)
				slices.Reverse(errs)
				return errs
			})
		}, "the events of a key stay in order"},
		{"events take turns at the partitions", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				errs := m.Publish(ctx, events)
				m.mu.Lock()
				defer m.mu.Unlock()
				for _, topic := range m.topics {
					for i := range topic.log {
						topic.log[i].Partition = i % topic.partitions
					}
				}
				return errs
			})
		}, "a key stays in one partition"},
		{"what follows a refused event is sent", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error { return alone(ctx, m, events) })
		}, "a refused event holds back its key"},
		{"what follows a refused event has an answer of its own", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				var e *publish.Error
				if errors.As(err, &e) && e.NotSent {
					errs[i] = errors.New("not sent")
				}
			}
			return errs
		}), "a refused event holds back its key"},
		{"a refusal is called the broker's fault", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				if err != nil {
					errs[i] = fmt.Errorf("publish: %s", err)
				}
			}
			return errs
		}), "a refused event holds back its key"},
		{"a refusal ends the call", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				errs := alone(ctx, m, events)
				for i := 1; i < len(errs); i++ {
					if errs[i] == nil {
						errs[i] = errs[i-1]
					}
				}
				return errs
			})
		}, "a refused event holds back nothing else"},
		{"events without a key wait for each other", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				errs := m.Publish(ctx, events)
				var first error
				for i := range events {
					if events[i].Key == "" && first != nil {
						errs[i] = first
					} else if events[i].Key == "" {
						first = errs[i]
					}
				}
				return errs
			})
		}, "a refused event holds back nothing else"},
		{"a key is one in all topics", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				errs := m.Publish(ctx, events)
				first := map[string]error{}
				for i, e := range events {
					if e.Key != "" && first[e.Key] != nil {
						errs[i] = first[e.Key]
					} else if errs[i] != nil {
						first[e.Key] = errs[i]
					}
				}
				return errs
			})
		}, "a refused event holds back nothing else"},
		{"a refusal is remembered", answered(func(events []holdfast.Event, errs []error) []error {
			for i, e := range events {
				if e.Type == probe {
					continue
				}
				if err, ok := remembered.Load(e.Topic + e.Key); ok {
					errs[i] = err.(error)
				} else if publish.FaultOf(errs[i]) == publish.FaultRecord {
					remembered.Store(e.Topic+e.Key, errs[i])
				}
			}
			return errs
		}), "a refusal is forgotten after the call"},
		{"a missing topic is called the event's fault", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				if publish.FaultOf(err) == publish.FaultTopic {
					errs[i] = &publish.Error{Fault: publish.FaultRecord, Err: err}
				}
			}
			return errs
		}), "a missing topic is the topic's fault"},
		{"a missing topic stops the call", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				if publish.FaultOf(err) == publish.FaultTopic {
					for j := range errs {
						errs[j] = errs[i]
					}
				}
			}
			return errs
		}), "a missing topic is the topic's fault"},
		{"a cancelled call is called a refusal", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				if errors.Is(err, context.Canceled) {
					errs[i] = &publish.Error{Fault: publish.FaultRecord, Err: err}
				}
			}
			return errs
		}), "a cancelled call says what arrived"},
		{"a cancelled call acknowledges", answered(func(_ []holdfast.Event, errs []error) []error {
			for i, err := range errs {
				if errors.Is(err, context.Canceled) {
					errs[i] = nil
				}
			}
			return errs
		}), "a cancelled call says what arrived"},
		{"a cancelled call hangs", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				if ctx.Err() != nil {
					<-t.Context().Done()
				}
				return m.Publish(ctx, events)
			})
		}, "a cancelled call says what arrived"},
		{"calls at the same time mix up", func(m *Memory) publish.Publisher {
			var mu sync.Mutex
			var kept []holdfast.Event
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				mu.Lock()
				defer mu.Unlock()
				if turn++; turn%5 == 0 && len(events) > 1 && events[0].Type != probe { // the rest goes with somebody else's call
					m.Publish(ctx, append(slices.Clone(events[1:]), kept...))
					kept = slices.Clone(events[:1])
					return make([]error, len(events))
				}
				return m.Publish(ctx, events)
			})
		}, "many goroutines publish at once"},
		{"the caller's events are sorted", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				slices.SortStableFunc(events, func(a, b holdfast.Event) int { return strings.Compare(a.Key, b.Key) })
				return m.Publish(ctx, events)
			})
		}, "the caller's events are not changed"},
		{"the caller's headers are written to", func(m *Memory) publish.Publisher {
			return publishFunc(func(ctx context.Context, events []holdfast.Event) []error {
				for _, e := range events {
					if e.Headers != nil {
						e.Headers["traceparent"] = "00-01"
					}
				}
				return m.Publish(ctx, events)
			})
		}, "the caller's events are not changed"},
	} {
		t.Run(bug.name, func(t *testing.T) {
			m, o := inMemory()
			o.Publisher = bug.inject(m)
			o.Bound = 300 * time.Millisecond
			failed := record(t, o)
			if failed[bug.check] == nil {
				t.Errorf("the check %q does not report it; these do: %v", bug.check, failed)
			}
		})
	}
}

func TestPublisherTest_AnOutageThatSpendsAttemptsIsReported(t *testing.T) {
	_, o := inMemory()
	for name, p := range map[string]publish.Publisher{
		"it is called the event's fault": publishFunc(func(_ context.Context, events []holdfast.Event) []error {
			return slices.Repeat([]error{retry.Permanent(errors.New("down"))}, len(events))
		}),
		"it is called a success": publishFunc(func(_ context.Context, events []holdfast.Event) []error { return make([]error, len(events)) }),
		"it has no end": publishFunc(func(context.Context, []holdfast.Event) []error {
			<-t.Context().Done()
			return nil
		}),
	} {
		o.Unreachable, o.Bound = p, 300*time.Millisecond
		if failed := record(t, o); len(failed) != 1 || failed["an unreachable broker is no event's fault"] == nil {
			t.Errorf("%s: %v", name, failed)
		}
	}
}

func TestPublisherTest_WhatTheOptionsLackIsLeftOut(t *testing.T) {
	_, o := inMemory()
	o.Refuse, o.Missing, o.Unreachable = nil, "", nil
	Run(t, o)
}

// gathering is a Memory with one method more.
type gathering struct {
	*Memory
	together func(batches [][]holdfast.Event, send func(batch int) []error, answered func(batch int, errs []error))
}

func (g gathering) Partition(e holdfast.Event) (partition, partitions int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := g.topics[e.Topic]; t != nil {
		return lane.PartitionOf(e.Key, e.ID, t.partitions), t.partitions
	}
	return 0, 0
}

func (g gathering) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, errs []error)) {
	send := func(batch int) []error { return g.Publish(ctx, batches[batch]) }
	if g.together != nil {
		g.together(batches, send, answered)
		return
	}
	for i := range batches {
		answered(i, send(i))
	}
}

func TestPublisherTest_WhatIsPublishedTogetherIsChecked(t *testing.T) {
	for name, together := range map[string]func(batches [][]holdfast.Event, send func(batch int) []error, answered func(batch int, errs []error)){
		"a batch is answered twice": func(batches [][]holdfast.Event, send func(int) []error, answered func(int, []error)) {
			for i := range batches {
				errs := send(i)
				answered(i, errs)
				answered(i, errs)
			}
		},
		"the last batch is not answered": func(batches [][]holdfast.Event, send func(int) []error, answered func(int, []error)) {
			for i := range max(0, len(batches)-1) {
				answered(i, send(i))
			}
		},
		"an answer is missing": func(batches [][]holdfast.Event, send func(int) []error, answered func(int, []error)) {
			for i := range batches {
				answered(i, send(i)[1:])
			}
		},
		"a batch that fails takes the others along": func(batches [][]holdfast.Event, send func(int) []error, answered func(int, []error)) {
			var failed error
			all := make([][]error, len(batches))
			for i := range batches {
				all[i] = send(i)
				for _, err := range all[i] {
					if publish.FaultOf(err) == publish.FaultTopic {
						failed = err
					}
				}
			}
			for i, errs := range all {
				for n := range errs {
					if errs[n] == nil {
						errs[n] = failed
					}
				}
				answered(i, errs)
			}
		},
		"a batch is sent from its end": func(batches [][]holdfast.Event, send func(int) []error, answered func(int, []error)) {
			for i := range batches {
				slices.Reverse(batches[i])
				errs := send(i)
				slices.Reverse(errs)
				answered(i, errs)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, o := inMemory()
			o.Publisher = gathering{Memory: m, together: together}
			found := 0
			for _, c := range checks {
				o := o
				if reports := ending.Reports(t, func(t testing.TB) { c.run(&suite{TB: t, o: o.together(t)}) }); len(reports) > 0 {
					found++
				}
			}
			if found == 0 {
				t.Error("no check reports it")
			}
		})
	}
	t.Run("nothing is wrong", func(t *testing.T) {
		m, o := inMemory()
		o.Publisher = gathering{Memory: m}
		Run(t, o)
	})
}
