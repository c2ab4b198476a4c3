package relay

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestBudget_APageWaitsForRoomInTheBudget(t *testing.T) {
	t.Parallel()
	b := newBudget(8<<20, 4<<20)
	take := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return b.take(ctx)
	}
	fits := func() bool { return take(wait.Limit()) == nil }
	waits := func() bool { return take(10*time.Millisecond) != nil }
	for range 2 {
		if !fits() {
			t.Fatal("there was no room for two pages")
		}
	}
	if !waits() {
		t.Fatal("a third page was read")
	}
	if kept := b.keep(100); kept != 100 { // a page turned out small
		t.Errorf("it keeps %d", kept)
	}
	if !waits() {
		t.Fatal("the 100 bytes that are kept were given away")
	}
	b.give(100)
	if !fits() {
		t.Fatal("what was given back is gone")
	}
	if kept := b.keep(1 << 30); kept != 4<<20 { // one event
		t.Errorf("it keeps %d", kept)
	}
}

// Whatever happened to its events, a relay that has ended holds nothing of its budget: published, parked, in a call that
// does not end, and those that were read and not sent.
func TestBudget_ARelayGivesItsWholeBudgetBack(t *testing.T) {
	skip.InShort(t, "it takes 21 s beside the others")
	t.Parallel()
	db := migrated.Lanes(t, 4)
	pgtest.Exec(t, db.Pool, `select holdfast.write('orders', (n % 24)::text, 't', convert_to(repeat('x', 20000), 'UTF8')) from generate_series(1, 3000) n`)
	a := &answering{takes: func(partition int) time.Duration {
		switch partition {
		case 1:
			return time.Hour
		case 3: // its events are parked while they are in a call
			return 1700 * time.Millisecond
		}
		return time.Millisecond
	}}
	a.set(func(e holdfast.Event) error {
		if e.Key == "2" {
			return &publish.Error{Topic: e.Topic, Partition: 2, Fault: publish.FaultRecord, Err: context.DeadlineExceeded}
		}
		return nil
	})
	r, err := New(db.Pool, a, Config{Lease: 2 * time.Minute, BatchSize: 100, MemoryBudget: 16 << 20, Logger: noLog, StopTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait.Until(t, "what can be published is, and the rest is parked", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		taken := map[string]bool{}
		for _, e := range a.taken {
			taken[e.id] = true
		}
		return len(taken) == 3000/12*10+3000/24 // of partition 2 the key 14 is taken
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if !r.budget.room.TryAcquire(16 << 20) {
		t.Error("a part of the budget was not given back")
	}
}

func TestBudget_ParkedEventsOfAllLanesTakeAPartOfTheBudget(t *testing.T) {
	for _, c := range []struct {
		budget int64
		lanes  int
		want   int
	}{{128 << 20, 0, 1 << 20}, {128 << 20, 8, 1 << 20}, {128 << 20, 32, 512 << 10}, {128 << 20, 256, 64 << 10}, {1 << 30, 256, 512 << 10}, {1, 1, 64 << 10}} {
		if got := drainBound(c.budget, c.lanes); got != c.want {
			t.Errorf("a budget of %d and %d lanes: %d bytes a statement, want %d", c.budget, c.lanes, got, c.want)
		}
	}
}
