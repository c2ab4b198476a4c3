package publish

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
)

// joinWait is how long the batches of a shared call wait for the middleware of the others, from the first that is sent. Without an
// end, a middleware that holds across next what the others need (a slot, a lock) would wait for them for ever, and they for it.
const joinWait = 20 * time.Millisecond

type wrappedGatherer struct {
	wrappedPartitioner
	gatherer Gatherer
}

// PublishTogether runs the middleware of all batches at the same time. What their first calls of next send within joinWait is one call
// of the Gatherer; everything else goes out by itself.
func (w wrappedGatherer) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	t := newJointCall(len(batches))
	var all sync.WaitGroup
	for i, events := range batches {
		all.Go(func() {
			var begun atomic.Bool
			var answers []error
			defer func() { // The others do not wait for it, whatever it does.
				if answers == nil {
					answers = refuseAll(events, errors.New("a publish middleware ended its goroutine (runtime.Goexit)"))
				}
				if begun.CompareAndSwap(false, true) {
					t.leave()
				}
				answered(i, answers)
			}()
			answers = w.call(ctx, events, func(ctx context.Context, part []holdfast.Event) []error {
				if begun.CompareAndSwap(false, true) {
					if answers, joined := t.join(ctx, part); joined {
						return answers
					}
				}
				return w.publisher.Publish(ctx, part)
			})
		})
	}
	t.run(ctx, w.gatherer)
	all.Wait()
}

// jointCall is what the middlewares of several batches send at the same time.
type jointCall struct {
	begun chan struct{} // closed when the first batch has joined, or all have left
	ready chan struct{} // closed when all have joined or left

	mu     sync.Mutex
	left   int // batches that have neither joined nor left
	joined []*member
	sent   bool // Invariant: joined does not change any more.
}

// member is a batch that goes out with others.
type member struct {
	events  []holdfast.Event
	answers chan []error // has room for them
}

func newJointCall(n int) *jointCall {
	t := &jointCall{left: n + 1, begun: make(chan struct{}), ready: make(chan struct{})}
	t.leave() // for the one that is none: so a call without batches is ready
	return t
}

// join sends a batch with the others, and returns its answers. It does not if the others are on their way, or ctx ends before they are.
func (jc *jointCall) join(ctx context.Context, events []holdfast.Event) (answers []error, with bool) {
	j := &member{events, make(chan []error, 1)}
	if !jc.add(j) {
		return nil, false
	}
	select {
	case answers = <-j.answers:
	case <-ctx.Done():
		if jc.withdraw(j) {
			return nil, false
		}
		answers = <-j.answers
	}
	return answers, true
}

// add puts a batch to the others, unless these are on their way.
func (jc *jointCall) add(j *member) bool {
	jc.mu.Lock()
	defer jc.mu.Unlock()
	if jc.sent {
		return false
	}
	if jc.joined = append(jc.joined, j); len(jc.joined) == 1 {
		jc.begin()
	}
	jc.less()
	return true
}

// withdraw takes a batch from the others, unless these are on their way.
func (jc *jointCall) withdraw(j *member) bool {
	jc.mu.Lock()
	defer jc.mu.Unlock()
	if jc.sent {
		return false
	}
	jc.joined = slices.DeleteFunc(jc.joined, func(other *member) bool { return other == j })
	return true
}

// leave says that a batch sends nothing.
func (jc *jointCall) leave() {
	jc.mu.Lock()
	defer jc.mu.Unlock()
	jc.less()
}

func (jc *jointCall) less() {
	if jc.left--; jc.left == 0 {
		jc.begin()
		close(jc.ready)
	}
}

func (jc *jointCall) begin() {
	select {
	case <-jc.begun:
	default:
		close(jc.begun)
	}
}

// run sends what has joined: when every batch has joined or left, joinWait after the first, or when ctx ends.
func (jc *jointCall) run(ctx context.Context, g Gatherer) {
	<-jc.begun
	timer := time.NewTimer(joinWait)
	defer timer.Stop()
	select {
	case <-jc.ready:
	case <-timer.C:
	case <-ctx.Done():
	}
	jc.mu.Lock()
	jc.sent = true
	jc.mu.Unlock()
	if len(jc.joined) == 0 {
		return
	}
	batches := make([][]holdfast.Event, len(jc.joined))
	for i, j := range jc.joined {
		batches[i] = j.events
	}
	g.PublishTogether(ctx, batches, func(batch int, answers []error) { jc.joined[batch].answer(answers) })
	for _, j := range jc.joined {
		j.answer(nil) // Nobody waits for what the publisher has left out.
	}
}

// answer answers a batch. The first answer counts: nobody takes a second one, and a publisher that gives it must not wait for that.
func (m *member) answer(answers []error) {
	select {
	case m.answers <- answers:
	default:
	}
}
