package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

func scheduled(key, payload string, at time.Time) holdfast.Event {
	e := event(key, payload)
	e.NotBefore = at
	return e
}

func TestSchedule_AScheduledEventTakesItsPlaceWhenItFallsDue(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var now time.Time // the database's clock decides
	if err := pool.QueryRow(t.Context(), "select clock_timestamp()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	due := now.Add(time.Hour)
	write(t, pool, scheduled("k", "later", due.Add(300*time.Millisecond)), scheduled("k", "first written", due), scheduled("k", "second written", due),
		scheduled("k", "past", now.Add(-time.Hour)), event("k", "now"))
	seen := make(chan time.Time, 10)
	stop := run(t, pool, b, relay.Config{Observer: relay.Observer{OnMoved: func(int, int) { seen <- time.Now() }}})
	arrives(t, b, "past", "now")
	stop() // a scheduled event survives the relay
	write(t, pool, event("k", "written while it waits"))
	// It falls due once that is written, however long it took to come this far.
	if err := pool.QueryRow(t.Context(), `with soon as materialized (select clock_timestamp() + interval '1 second' as due),
		moved as (update holdfast.scheduled set due_at = soon.due + (due_at - $1::timestamptz) from soon) select due from soon`, due).Scan(&due); err != nil {
		t.Fatal(err)
	}
	run(t, pool, b, relay.Config{Observer: relay.Observer{OnPublished: func(_ int, events []holdfast.Event) {
		for _, e := range events {
			if string(e.Payload) == "first written" && time.Now().Before(due.Add(-20*time.Millisecond)) {
				t.Errorf("published %v before it is due", time.Until(due))
			}
		}
	}}})
	arrives(t, b, "later")
	wantFirsts(t, b, "k", "past", "now", "written while it waits", "first written", "second written", "later")
	wantOnce(t, b)
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.scheduled"); n != 0 {
		t.Errorf("%d events are still scheduled", n)
	}
}

func TestSchedule_ManyScheduledEventsAreMovedOnceEach(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	pool, b := setup(t, 4), newBroker()
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	var events []holdfast.Event
	for i := 2999; i >= 0; i-- { // the last to be written is the first to fall due
		events = append(events, scheduled(fmt.Sprintf("k%d", i%7), fmt.Sprintf("%06d", i), at.Add(time.Duration(i)*time.Microsecond)))
	}
	write(t, pool, events...)
	takeovers := noteTakeovers(t, pool)
	var lost atomic.Int32 // on a machine so busy that a save takes half a second
	one := relay.Config{Lease: time.Second, Observer: relay.Observer{OnLost: func(int, bool, error) { lost.Add(1) }}}
	stop := run(t, pool, b, one)
	// They fall due once all are written, however long that took.
	pgtest.Exec(t, pool, "update holdfast.scheduled set due_at = statement_timestamp() + interval '1 second' + (due_at - $1::timestamptz)", at)
	wait.Until(t, "some arrive", func() bool { return len(b.events()) > 0 })
	stop()
	stopOne, stopOther := run(t, pool, b, one), run(t, pool, b, one)
	firsts := func(key int) []string { return b.firsts(fmt.Sprintf("k%d", key)) }
	wait.Until(t, "all arrive", func() bool {
		n := 0
		for key := range 7 {
			n += len(firsts(key))
		}
		return n == len(events)
	})
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.event"); n != int64(len(events)) {
		t.Errorf("%d events were moved into the log, want each of %d once", n, len(events))
	}
	stopOne() // One that was stalled has learnt by then what it lost.
	stopOther()
	if lost.Load() == 0 && takeovers() == 0 {
		wantOnce(t, b)
	}
	for key := range 7 {
		if got := firsts(key); !slices.IsSorted(got) {
			t.Errorf("key k%d came as %q", key, got)
		}
	}
}

// However much falls due at once, a transaction moves no more of it than a server has memory for.
func TestSchedule_LargeScheduledEventsAreMovedAFewAtATime(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	const events, size = 80, 1_000_000
	payload := strings.Repeat("x", size)
	for i := range events {
		write(t, pool, scheduled("k", fmt.Sprintf("%03d %s", i, payload), time.Now().Add(time.Hour)))
	}
	pgtest.Exec(t, pool, "update holdfast.scheduled set due_at = now() - interval '1 second' + seq * interval '1 microsecond'")
	var moves, most atomic.Int64
	run(t, pool, b, relay.Config{Observer: relay.Observer{OnMoved: func(_, events int) {
		moves.Add(1)
		most.Store(max(most.Load(), int64(events)))
	}}})
	wait.Until(t, "all arrive", func() bool { return len(b.events()) >= events })
	for i, e := range b.events()[:events] {
		if want := fmt.Sprintf("%03d ", i); !strings.HasPrefix(string(e.Payload), want) || len(e.Payload) != size+4 {
			t.Fatalf("event %d begins with %q and has %d bytes", i, e.Payload[:4], len(e.Payload))
		}
	}
	if fits := int64(32<<20)/size + 1; most.Load() > fits || moves.Load() < events/fits {
		t.Errorf("%d moves, of %d events at most; %d events may go at once", moves.Load(), most.Load(), fits)
	}
}
