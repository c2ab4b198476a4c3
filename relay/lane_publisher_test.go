package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// laneBook is a publish.LanePublisher that remembers what its producers are asked and told.
type laneBook struct {
	mu     sync.Mutex
	opened []*bookedLane
	answer func(l *bookedLane, e holdfast.Event) error
}

func (b *laneBook) Publish(_ context.Context, events []holdfast.Event) []error {
	panic("a lane was published without its producer")
}

func (b *laneBook) PublishTogether(context.Context, [][]holdfast.Event, func(int, []error)) {
	panic("lanes were published without their producers")
}

func (b *laneBook) Partition(holdfast.Event) (int, int) { return 0, 1 }

func (b *laneBook) OpenLane(schema string, lane int, epoch int64) publish.LaneProducer {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &bookedLane{book: b, schema: schema, lane: lane, epoch: epoch}
	b.opened = append(b.opened, l)
	return l
}

// lanes are the producers of a lane, in the order in which they were opened.
func (b *laneBook) lanes(number int) (found []*bookedLane) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.opened {
		if l.lane == number {
			found = append(found, l)
		}
	}
	return found
}

type bookedLane struct {
	book   *laneBook
	schema string
	lane   int
	epoch  int64

	mu        sync.Mutex
	published []string
	settled   []string
	caughtUp  bool
	closed    bool
}

func (l *bookedLane) Publish(_ context.Context, events []holdfast.Event) []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	answers := make([]error, len(events))
	failed := map[string]error{}
	for i, e := range events {
		if err := failed[e.Key]; err != nil {
			answers[i] = &publish.Error{Topic: e.Topic, Fault: publish.FaultOf(err), NotSent: true, Err: err}
			continue
		}
		if l.book.answer != nil {
			answers[i] = l.book.answer(l, e)
		}
		if answers[i] == nil {
			l.published = append(l.published, e.ID)
		} else {
			failed[e.Key] = answers[i]
		}
	}
	return answers
}

func (l *bookedLane) Settled(events []publish.EventName, readAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range events {
		l.settled = append(l.settled, name.ID)
	}
	l.caughtUp = l.caughtUp || !readAt.IsZero()
}

func (l *bookedLane) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// state is what was published and what of it is not settled.
func (l *bookedLane) state() (published, left int, caughtUp, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.published {
		if !slices.Contains(l.settled, id) {
			left++
		}
	}
	return len(l.published), left, l.caughtUp, l.closed
}

// runLanes runs a relay of one lane until the test ends it.
func runLanes(t *testing.T, db *pgtest.DB, p relay.Publisher, c relay.Config) (stop func()) {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	c.Lease = 2 * time.Minute // no save on a busy machine comes too late: the tests say which claims there are
	r, err := relay.New(db.Pool, p, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func writeNumbered(t *testing.T, db *pgtest.DB, from, to int) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < to; i++ {
		if err := outbox.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "x", ID: fmt.Sprint(i), Key: fmt.Sprint(i % 3)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// One event is refused at first, and published as a parked one.
func TestLanePublisher_AProducerOfALaneIsToldWhatIsSaved(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.Lanes(t, 1)
	var refused atomic.Bool
	book := &laneBook{answer: func(_ *bookedLane, e holdfast.Event) error {
		if e.ID == "3" && refused.CompareAndSwap(false, true) {
			return &publish.Error{Topic: e.Topic, Fault: publish.FaultRecord, Err: errors.New("too large")}
		}
		return nil
	}}
	var wrapped atomic.Int64
	p := publish.Wrap(book, func(next publish.Func) publish.Func {
		return func(ctx context.Context, events []holdfast.Event) []error {
			wrapped.Add(int64(len(events)))
			return next(ctx, events)
		}
	})
	stop := runLanes(t, db, p, relay.Config{Retry: retry.Policy{Attempts: 10, Base: 1, Cap: 1}})
	writeNumbered(t, db, 0, 10)
	defer func() {
		for _, l := range book.lanes(0) {
			slices.Sort(l.settled)
			if t.Failed() {
				t.Logf("epoch %d: published %v, settled %v", l.epoch, l.published, l.settled)
			} else if len(slices.Compact(slices.Clone(l.settled))) != len(l.settled) {
				t.Errorf("some are settled twice: %v", l.settled)
			}
		}
	}()
	wait.Until(t, "all is published and settled", func() bool {
		lanes := book.lanes(0)
		if len(lanes) == 0 {
			return false
		}
		published, left, _, _ := lanes[0].state()
		return published == 10 && left == 0
	})
	writeNumbered(t, db, 10, 11) // the parked event has left: now nothing is parked
	lane := book.lanes(0)[0]
	wait.Until(t, "everything is known to be read", func() bool {
		published, left, caughtUp, _ := lane.state()
		return published == 11 && left == 0 && caughtUp
	})
	stop()
	if _, _, _, closed := lane.state(); !closed {
		t.Error("the lane has left, and its producer is open")
	}
	if lane.schema != "holdfast" || lane.epoch < 1 {
		t.Errorf("it was opened with schema %q, epoch %d", lane.schema, lane.epoch)
	}
	if n := wrapped.Load(); n < 11 {
		t.Errorf("%d of 11 events went through the middleware", n)
	}
}

func TestLanePublisher_ALaneWhoseProducerIsFencedIsClaimedAnew(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db := migrated.Lanes(t, 1)
	book := &laneBook{answer: func(l *bookedLane, e holdfast.Event) error {
		if l.epoch < 3 {
			return &publish.Error{Topic: e.Topic, Fault: publish.FaultBroker, Err: fmt.Errorf("%w: for a test", publish.ErrLaneTaken)}
		}
		return nil
	}}
	stop := runLanes(t, db, book, relay.Config{})
	writeNumbered(t, db, 0, 5)
	wait.Until(t, "the third claim publishes", func() bool {
		lanes := book.lanes(0)
		if len(lanes) < 3 {
			return false
		}
		published, left, _, _ := lanes[2].state()
		return published == 5 && left == 0
	})
	stop()
	for i, l := range book.lanes(0) {
		if _, _, _, closed := l.state(); !closed || l.epoch != int64(i+1) {
			t.Errorf("producer %d has epoch %d, closed: %v", i, l.epoch, closed)
		}
	}
}

func TestLanePublisher_TenantsAreNotToldApartWhereNothingMayBeRepeated(t *testing.T) {
	t.Parallel()
	for _, p := range []relay.Publisher{&laneBook{}, publish.Wrap(&laneBook{}, func(next publish.Func) publish.Func { return next })} {
		_, err := relay.New(nil, p, relay.Config{TenantSeparator: "/"})
		if err == nil || !strings.Contains(err.Error(), `tenant separator is "/": it must be empty with a publisher that`) {
			t.Errorf("%T: %v", p, err)
		}
	}
}
