package publish_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
	"github.com/holdfast-go/holdfast/retry"
)

// memory is a broker in memory with a topic of one partition.
func memory() *publishertest.Memory {
	m := &publishertest.Memory{Refuse: func(e holdfast.Event) bool { return string(e.Payload) == "refuse me" }}
	m.CreateTopic("orders", 1)
	return m
}

// togetherBroker is a broker that takes several batches, and counts how.
type togetherBroker struct {
	*publishertest.Memory
	together, alone atomic.Int64
}

func (b *togetherBroker) Publish(ctx context.Context, events []holdfast.Event) []error {
	b.alone.Add(1)
	return b.Memory.Publish(ctx, events)
}

func (b *togetherBroker) Partition(holdfast.Event) (int, int) { return 0, 1 }
func (b *togetherBroker) Ping(context.Context) error          { return errors.New("pinged") }

func (b *togetherBroker) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(int, []error)) {
	b.together.Add(1)
	for i, events := range batches {
		answered(i, b.Memory.Publish(ctx, events))
	}
}

// Types with some of the methods.
type (
	onlyPublisher   struct{ publish.Publisher }
	onlyPartitioner struct{ publish.Partitioner }
	onlyGatherer    struct{ publish.Gatherer }
	onlyPinger      struct{ publish.Pinger }
	partitionPinger struct {
		publish.Partitioner
		pinger
	}
	pinger struct{}
	named  struct{ publish.Publisher }
)

func (named) System() string { return "pigeons" }

func (pinger) Ping(context.Context) error { return errors.New("pinged") }

func TestWrap_AWrappedPublisherHasTheMethodsOfTheOneInside(t *testing.T) {
	b := &togetherBroker{Memory: memory()}
	for name, c := range map[string]struct {
		p                          publish.Publisher
		partitions, gathers, pings bool
	}{
		"nothing else":          {onlyPublisher{b}, false, false, false},
		"a partitioner":         {onlyPartitioner{b}, true, false, false},
		"a gatherer":            {onlyGatherer{b}, true, true, false},
		"a pinger":              {onlyPinger{b}, false, false, true},
		"a partitioner, pinger": {partitionPinger{Partitioner: b}, true, false, true},
		"all":                   {b, true, true, true},
	} {
		w := publish.Wrap(publish.Wrap(c.p), func(next publish.Func) publish.Func { return next })
		partitioner, partitions := w.(publish.Partitioner)
		_, gathers := w.(publish.Gatherer)
		ping, pings := w.(publish.Pinger)
		if partitions != c.partitions || gathers != c.gathers || pings != c.pings {
			t.Errorf("%s: partitions %v, gathers %v, pings %v", name, partitions, gathers, pings)
		}
		if pings && ping.Ping(t.Context()).Error() != "pinged" {
			t.Errorf("%s: the ping did not arrive", name)
		}
		if partitions {
			if at, of := partitioner.Partition(holdfast.Event{}); at != 0 || of != 1 {
				t.Errorf("%s: partition %d of %d", name, at, of)
			}
		}
	}
}

func TestWrap_AWrappedPublisherIsOfTheSystemOfTheOneInside(t *testing.T) {
	for want, p := range map[string]publish.Publisher{"pigeons": named{memory()}, "": memory()} {
		w, ok := publish.Wrap(publish.Wrap(p), func(next publish.Func) publish.Func { return next }).(publish.Named)
		if !ok || w.System() != want {
			t.Errorf("%v is not of %q", w, want)
		}
	}
}

func TestWrap_ThePublishersFirstMiddlewareIsOutermost(t *testing.T) {
	var calls []string
	around := func(name string) func(publish.Func) publish.Func {
		return func(next publish.Func) publish.Func {
			return func(ctx context.Context, events []holdfast.Event) []error {
				calls = append(calls, name)
				return next(ctx, events)
			}
		}
	}
	m := memory()
	errs := publish.Wrap(m, around("a"), around("b")).Publish(t.Context(), numbered(3))
	if !slices.Equal(calls, []string{"a", "b"}) || !slices.Equal(errs, make([]error, 3)) || len(m.Read("orders")) != 3 {
		t.Errorf("calls %v, answers %v, %d published", calls, errs, len(m.Read("orders")))
	}
}

// numbered is n events of one key.
func numbered(n int) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = holdfast.Event{ID: fmt.Sprint(i), Source: "shop", Topic: "orders", Key: "k", Type: "order.placed", Payload: fmt.Append(nil, i)}
	}
	return events
}

func TestWrap_NoPublishMiddlewareLosesAnEventOrBreaksAnOrder(t *testing.T) {
	for name, c := range map[string]struct {
		middleware func(ctx context.Context, events []holdfast.Event, next publish.Func) []error
		published  string // ids, in their order
		answers    string // for each event, what its error says at its end, or ok
	}{
		"it passes on": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error { return next(ctx, es) }, "012", "ok ok ok"},
		"it publishes parts": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			return append(next(ctx, es[:1]), next(ctx, es[1:])...)
		}, "012", "ok ok ok"},
		"it never publishes": {func(_ context.Context, es []holdfast.Event, _ publish.Func) []error {
			return make([]error, len(es))
		}, "", "unacknowledged unacknowledged unacknowledged"},
		"it leaves one out": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			return append(next(ctx, es[:2]), nil)
		}, "01", "ok ok unacknowledged"},
		"it refuses the last": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			return append(next(ctx, es[:2]), errors.New("mine"))
		}, "01", "ok ok mine"},
		"it refuses the first": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			return append([]error{errors.New("mine")}, next(ctx, es[1:])...)
		}, "", "mine mine mine"},
		"it publishes the first last": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			errs := next(ctx, es[1:])
			return append(next(ctx, es[:1]), errs...)
		}, "0", "ok order order"},
		"it changes the order": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			back := slices.Clone(es)
			slices.Reverse(back)
			errs := next(ctx, back)
			slices.Reverse(errs)
			return errs
		}, "0", "ok order order"},
		"it swallows a refusal": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			es = slices.Clone(es)
			es[1].Payload = []byte("refuse me")
			return make([]error, len(next(ctx, es)))
		}, "0", "ok unacknowledged unacknowledged"},
		"it tries again what failed": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			bad := slices.Clone(es)
			bad[1].Payload = []byte("refuse me")
			errs := next(ctx, bad)
			copy(errs[1:], next(ctx, es[1:]))
			return errs
		}, "012", "ok ok ok"},
		"it changes a key": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			es = slices.Clone(es)
			es[0].Key = "l"
			return next(ctx, es)
		}, "", "changed changed changed"},
		"it changes an id": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			es = slices.Clone(es)
			es[2].ID = "x"
			return next(ctx, es)
		}, "01", "ok ok changed"},
		"it gives too few answers": {func(ctx context.Context, es []holdfast.Event, next publish.Func) []error {
			return next(ctx, es)[:2]
		}, "012", "number number number"},
		"it panics": {func(context.Context, []holdfast.Event, publish.Func) []error { panic("SECRET") }, "", "string string string"},
		"it dereferences nil": {func(context.Context, []holdfast.Event, publish.Func) []error {
			var e *holdfast.Event
			return []error{errors.New(e.ID)}
		}, "", "dereference dereference dereference"},
		"it passes another context": {func(_ context.Context, es []holdfast.Event, next publish.Func) []error {
			return next(context.Background(), es)
		}, "", "context context context"},
	} {
		for _, how := range []string{"alone", "together"} {
			t.Run(name+", "+how, func(t *testing.T) {
				b := &togetherBroker{Memory: memory()}
				p := publish.Wrap(b, func(next publish.Func) publish.Func {
					return func(ctx context.Context, events []holdfast.Event) []error { return c.middleware(ctx, events, next) }
				})
				var errs []error
				if how == "alone" {
					errs = p.Publish(t.Context(), numbered(3))
				} else {
					p.(publish.Gatherer).PublishTogether(t.Context(), [][]holdfast.Event{numbered(3)}, func(_ int, answers []error) { errs = answers })
				}
				ids := ""
				for _, r := range b.Read("orders") {
					ids += string(r.Value)
				}
				if ids != c.published {
					t.Errorf("published %q, want %q", ids, c.published)
				}
				says := map[string]string{"unacknowledged": "answered nil for an event that the broker did not acknowledge", "order": "the order of the key would break", "mine": "mine",
					"changed": "was not given, or changed its topic or key", "number": "gave 2 answers for 3 events", "string": "panicked with a value of type string", "dereference": "nil pointer dereference", "context": "a context that was not made from its own"}
				want := strings.Fields(c.answers)
				if len(errs) != 3 {
					t.Fatalf("%d answers", len(errs))
				}
				for i, err := range errs {
					if want[i] == "ok" && err != nil || want[i] != "ok" && (err == nil || !strings.Contains(err.Error(), says[want[i]])) {
						t.Errorf("event %d: %v, want %s", i, err, want[i])
					}
					if err != nil && want[i] != "mine" && publish.FaultOf(err) != publish.FaultPartition {
						t.Errorf("event %d: its fault is %s", i, publish.FaultOf(err))
					}
					if err != nil && strings.Contains(err.Error(), "SECRET") {
						t.Error("the panic's value is said")
					}
				}
			})
		}
	}
}

func TestWrap_WhatFollowsARefusedEventHasItsAnswer(t *testing.T) {
	mine := errors.New("mine")
	for name, c := range map[string]struct {
		refusal error
		fault   publish.Fault
	}{
		"for good":            {retry.Permanent(mine), publish.FaultRecord},
		"with a plain error":  {mine, publish.FaultBroker},
		"with its own answer": {&publish.Error{Fault: publish.FaultTopic, Err: mine}, publish.FaultTopic},
	} {
		m := memory()
		events := numbered(4)
		events[2].Key = "another" // goes out
		errs := publish.Wrap(m, func(next publish.Func) publish.Func {
			return func(ctx context.Context, es []holdfast.Event) []error {
				return append([]error{c.refusal}, next(ctx, es[1:])...)
			}
		}).Publish(t.Context(), events)
		if errs[0] != c.refusal || errs[2] != nil || len(m.Read("orders")) != 1 {
			t.Errorf("%s: answers %v, %d published", name, errs, len(m.Read("orders")))
		}
		for _, i := range []int{1, 3} {
			var err *publish.Error
			if !errors.As(errs[i], &err) || !err.NotSent || !errors.Is(err.Err, c.refusal) || publish.FaultOf(errs[i]) != c.fault {
				t.Errorf("%s: event %d has the answer %v, of fault %s; want what refused the first, not sent, of fault %s", name, i, errs[i], publish.FaultOf(errs[i]), c.fault)
			}
		}
	}
}

func TestWrap_AnIDThatIsWrittenTwiceIsPublishedTwice(t *testing.T) {
	m := memory()
	events := numbered(3)
	events[2].ID = events[0].ID
	errs := publish.Wrap(m, func(next publish.Func) publish.Func { return next }).Publish(t.Context(), events)
	if !slices.Equal(errs, make([]error, 3)) || len(m.Read("orders")) != 3 {
		t.Errorf("answers %v, %d published", errs, len(m.Read("orders")))
	}
}

func TestWrap_TheMiddlewareOfManyPartitionsIsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no batch is late
		b := &togetherBroker{Memory: memory()}
		var mu sync.Mutex
		at, most := 0, 0
		p := publish.Wrap(b, func(next publish.Func) publish.Func {
			return func(ctx context.Context, events []holdfast.Event) []error {
				mu.Lock()
				at++
				most = max(most, at)
				mu.Unlock()
				if events[0].Key == "key 3" {
					return slices.Repeat([]error{errors.New("mine")}, len(events))
				}
				errs := next(ctx, events[:1])
				return append(errs, next(ctx, events[1:])...)
			}
		})
		batches := make([][]holdfast.Event, 50)
		for i := range batches {
			batches[i] = numbered(2)
			for j := range batches[i] {
				batches[i][j].Key, batches[i][j].ID = fmt.Sprint("key ", i), fmt.Sprint(i, "-", j)
			}
		}
		answers := make([][]error, 50)
		p.(publish.Gatherer).PublishTogether(t.Context(), batches, func(i int, errs []error) {
			mu.Lock()
			defer mu.Unlock()
			answers[i] = errs
		})
		for i, errs := range answers {
			want := "[<nil> <nil>]"
			if i == 3 {
				want = "[mine mine]"
			}
			if fmt.Sprint(errs) != want {
				t.Errorf("batch %d: %v, want %s", i, errs, want)
			}
		}
		if b.together.Load() != 1 || b.alone.Load() != 49 || len(b.Read("orders")) != 98 {
			t.Errorf("%d calls together and %d alone for %d events, want 1, 49 and 98", b.together.Load(), b.alone.Load(), len(b.Read("orders")))
		}
	})
}

func TestWrap_AWrappedPublisherKeepsThePromises(t *testing.T) {
	b := &togetherBroker{Memory: &publishertest.Memory{Refuse: func(e holdfast.Event) bool { return string(e.Payload) == "refuse me" }}}
	var mu sync.Mutex
	made := 0
	pass := func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error { return next(ctx, events) }
	}
	publishertest.Run(t, publishertest.Options{
		Publisher: publish.Wrap(onlyPublisher{b}, pass, pass),
		Topic: func(_ testing.TB, partitions int) string {
			mu.Lock()
			defer mu.Unlock()
			made++
			b.CreateTopic(fmt.Sprint("topic-", made), partitions)
			return fmt.Sprint("topic-", made)
		},
		Read:        func(_ testing.TB, topic string) []publishertest.Stored { return b.Read(topic) },
		Refuse:      func(e holdfast.Event) holdfast.Event { e.Payload = []byte("refuse me"); return e },
		Missing:     "missing",
		Unreachable: publish.Wrap(&publishertest.Memory{Down: true}, pass),
	})
}

func TestWrap_AMiddlewareMayPanicWithAnErrorThatPanics(t *testing.T) {
	t.Parallel()
	for _, bad := range badly.Errors() {
		p := publish.Wrap(memory(), func(publish.Func) publish.Func {
			return func(context.Context, []holdfast.Event) []error { panic(bad.Err) }
		})
		answers := p.Publish(t.Context(), []holdfast.Event{{ID: "1", Source: "shop", Topic: "orders"}})
		if len(answers) != 1 || publish.FaultOf(answers[0]) != publish.FaultPartition || !strings.Contains(fmt.Sprint(answers[0]), "panicked") {
			t.Errorf("%s: %v", bad.Name, answers)
		}
		refuse := publish.Wrap(memory(), func(publish.Func) publish.Func {
			return func(context.Context, []holdfast.Event) []error { return []error{bad.Err, bad.Err} }
		})
		answers = refuse.Publish(t.Context(), []holdfast.Event{{ID: "1", Source: "shop", Topic: "orders", Key: "k"}, {ID: "2", Source: "shop", Topic: "orders", Key: "k"}})
		for _, err := range answers {
			if text := fmt.Sprint(err); !strings.Contains(text, bad.Says) || errors.Is(err, context.Canceled) {
				t.Errorf("%s: it says %q, want %q", bad.Name, text, bad.Says)
			}
		}
	}
}
