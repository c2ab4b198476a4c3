package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestObserverPolls_LooksPagesAndFencedLanesAreObserved(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var polls, found, read atomic.Int64
	lost := make(chan bool, 100)
	run(t, pool, b, relay.Config{Lease: 15 * time.Second, Observer: relay.Observer{
		OnPolled: func(lanes int, unread bool, took time.Duration) {
			if lanes != 1 || took <= 0 {
				t.Errorf("%d lanes in %v", lanes, took)
			}
			polls.Add(1)
			if unread {
				found.Add(1)
			}
		},
		OnRead: func(lane, events int, took time.Duration) {
			if lane != 0 || took <= 0 {
				t.Errorf("lane %d in %v", lane, took)
			}
			read.Add(int64(events))
		},
		OnLost: func(_ int, fenced bool, _ error) { lost <- fenced },
	}})
	wait.Until(t, "the relay waits for events", func() bool { return polls.Load() > 2 })
	write(t, pool, event("k", "1"), event("k", "2"))
	arrives(t, b, "2")
	wait.Until(t, "they were found and read", func() bool { return found.Load() > 0 && read.Load() >= 2 })
	pgtest.Exec(t, pool, "update holdfast.lane set owner = 'thief', epoch = epoch + 1, lease_until = now() + interval '1 second'")
	wait.Until(t, "the lane is lost", func() bool { return len(lost) > 0 })
	if fenced := <-lost; !fenced {
		t.Error("the observer did not hear that it was fenced")
	}
	// A lane that is dropped for another reason wrote nothing too late.
	write(t, pool, event("k", "3"))
	arrives(t, b, "3")
	for len(lost) > 0 {
		<-lost
	}
	pgtest.Exec(t, pool, "create function fail() returns trigger language plpgsql as $$ begin raise 'planned'; end $$; create trigger fail before insert on holdfast.parked for each row execute function fail()")
	b.set(refusing(publish.FaultRecord, "4"))
	write(t, pool, event("k", "4"))
	wait.Until(t, "the lane is lost again", func() bool { return len(lost) > 0 })
	if fenced := <-lost; fenced {
		t.Error("the observer heard that it was fenced")
	}
}
