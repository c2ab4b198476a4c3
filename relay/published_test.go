package relay_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// An event that was refused counts when the broker takes it, and one that is published again counts again.
func TestPublished_LanesCountWhatTheBrokerHasAcknowledged(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 4), newBroker()
	counted := func() int64 { return pgtest.Count(t, pool, "select sum(published) from holdfast.lane") }
	var events []holdfast.Event
	for n := range 30 {
		events = append(events, event(fmt.Sprint("k", n%7), fmt.Sprint(n)))
	}
	b.set(refusing(publish.FaultRecord, "late", "never"))
	stop := run(t, pool, b, relay.Config{Retry: untiring})
	write(t, pool, append(events, event("a", "late"), event("a", "after"), event("", "never"))...)
	wait.Until(t, "the rows of the lanes have what was acknowledged, while the relay runs", func() bool { return counted() == 30 })
	wait.Until(t, "three events are parked", func() bool { return parked(t, pool) == 3 })
	b.set(refusing(publish.FaultRecord, "never"))
	arrives(t, b, "late", "after")
	stop()
	if n := counted(); n != 32 {
		t.Errorf("%d are counted when the relay has stopped, want 32", n)
	}

	b.set(nil) // for another relay, which goes on from there and publishes everything of a lane again
	const again = "update holdfast.lane set done = '3:3:' where lane = (select lane from holdfast.event group by lane order by count(*) desc limit 1)"
	repeated := pgtest.Count(t, pool, "select count(*) from holdfast.event group by lane order by count(*) desc limit 1")
	pgtest.Exec(t, pool, again)
	stop = run(t, pool, b, relay.Config{Retry: untiring})
	write(t, pool, event("b", "last"))
	arrives(t, b, "never", "last")
	wait.Until(t, "the log is read", func() bool { return int64(len(b.events())) >= 34+repeated })
	stop()
	if n, took := counted(), int64(len(b.events())); n != took || took != 34+repeated {
		t.Errorf("%d are counted and the broker has taken %d, want %d", n, took, 34+repeated)
	}
}
