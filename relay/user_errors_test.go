package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

type badFault struct{}

func (badFault) Error() string               { return "badFault" }
func (badFault) PublishFault() publish.Fault { panic("planned") }

// badAnswers are what a publisher may answer.
func badAnswers() []badly.Behaved {
	return append(badly.Errors(),
		badly.Behaved{Name: "its fault panics", Err: badFault{}, Says: "badFault"},
		badly.Behaved{Name: "a nil pointer of this package", Err: (*publish.Error)(nil), Says: "the Error method of a nil *publish.Error panicked"},
		badly.Behaved{Name: "a nil pointer in an error of this package", Err: &publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: (*publish.Error)(nil)}, Says: "the Error method of a nil *publish.Error panicked"},
	)
}

func TestUserErrors_AnAnswerThatMayPanicHasAFault(t *testing.T) {
	t.Parallel()
	for _, bad := range badAnswers() {
		want := publish.FaultBroker
		if retry.IsPermanent(bad.Err) || bad.Name == "a nil pointer in an error of this package" {
			want = publish.FaultRecord
		}
		if got := publish.FaultOf(bad.Err); got != want {
			t.Errorf("%s: %q, want %q", bad.Name, got, want)
		}
		if got := fmt.Sprint(&publish.Error{Topic: "orders", Err: bad.Err}); !strings.Contains(got, bad.Says) {
			t.Errorf("%s: it says %q, want %q", bad.Name, got, bad.Says)
		}
	}
}

// Each event is answered with an error of its own, as for a record that the broker refuses, and then becomes a dead letter; the others
// are published.
func TestUserErrors_AnEventWhoseAnswerMayPanicBecomesADeadLetter(t *testing.T) {
	for name, around := range map[string]func(relay.Publisher) relay.Publisher{
		"of the publisher": func(p relay.Publisher) relay.Publisher { return p },
		"under a middleware": func(p relay.Publisher) relay.Publisher {
			return publish.Wrap(p, func(next publish.Func) publish.Func { return next })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			of := map[string]badly.Behaved{}
			for _, bad := range badAnswers() {
				of[bad.Name] = bad
			}
			b.set(func(e holdfast.Event) error {
				if bad, ok := of[e.Key]; ok {
					return &publish.Error{Topic: e.Topic, Fault: publish.FaultRecord, Err: bad.Err}
				}
				return nil
			})
			var mu sync.Mutex
			observed := map[string]string{}
			run(t, pool, around(b), relay.Config{Retry: retry.Policy{Attempts: 2, Base: time.Millisecond, Cap: time.Millisecond},
				Observer: relay.Observer{OnPublish: func(ctx context.Context, p relay.Publishing) (context.Context, func([]error)) {
					return ctx, func(errs []error) {
						mu.Lock()
						defer mu.Unlock()
						for i, err := range errs {
							if err != nil {
								observed[p.Events[i].Key] = err.Error()
							}
						}
					}
				}}})
			events := []holdfast.Event{}
			for key := range of {
				events = append(events, holdfast.Event{Topic: "orders", Type: "order.placed", Key: key, Payload: []byte("{}")})
			}
			write(t, pool, append(events, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "good", Payload: []byte("{}")})...)
			if !wait.For(wait.Limit(), func() bool {
				return pgtest.Count(t, pool, "select count(*) from holdfast.letter") == int64(len(of)) && len(b.firsts("good")) == 1
			}) {
				t.Fatalf("%d dead letters, want %d", pgtest.Count(t, pool, "select count(*) from holdfast.letter"), len(of))
			}
			mu.Lock()
			defer mu.Unlock()
			for key, bad := range of {
				if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where key = $1 and attempts = 2 and strpos(array_to_string(errors, ' '), $2) > 0", key, bad.Says); n != 1 {
					t.Errorf("%s: no letter after two attempts says %q", key, bad.Says)
				}
				if !strings.Contains(observed[key], bad.Says) {
					t.Errorf("%s: an observer was told %q, want %q", key, observed[key], bad.Says)
				}
			}
		})
	}
}

// An answer that says nothing of a fault holds the lane, as for any other error, and the log says why. So does a ping.
func TestUserErrors_AnAnswerThatMayPanicHoldsTheLaneAndIsSaid(t *testing.T) {
	skip.InShort(t, "it takes seconds: a relay for each kind of error")
	for _, bad := range badAnswers() {
		if publish.FaultOf(bad.Err) == publish.FaultRecord {
			continue
		}
		t.Run(bad.Name, func(t *testing.T) {
			t.Parallel()
			var log logtest.Log
			pool, b := setup(t, 1), newBroker()
			b.set(func(e holdfast.Event) error { return bad.Err })
			run(t, pool, pinged{b, bad.Err}, relay.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			write(t, pool, holdfast.Event{Topic: "orders", Type: "order.placed", Key: "k", Payload: []byte("{}")})
			if !wait.For(wait.Limit(), func() bool {
				return strings.Contains(log.String(), "no broker answers yet") && strings.Count(log.String(), bad.Says) > 1
			}) {
				t.Errorf("the log does not say %q: %s", bad.Says, log.String())
			}
			b.set(nil)
			if !wait.For(wait.Limit(), func() bool { return len(b.firsts("k")) == 1 }) {
				t.Error("the lane did not go on")
			}
		})
	}
}

type pinged struct {
	*broker
	err error
}

func (p pinged) Ping(context.Context) error { return p.err }
