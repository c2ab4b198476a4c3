package relay_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

func TestObserverPolls_LooksPagesAndFencedLanesAreObserved(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var polls, found, read atomic.Int64
	lost := make(chan relay.Lost, 100)
	run(t, pool, b, relay.Config{Lease: 15 * time.Second, Observer: relay.Observer{
		OnPolled: func(p relay.Polled) {
			if p.Lanes != 1 || p.Took <= 0 {
				t.Errorf("got %+v", p)
			}
			polls.Add(1)
			if p.Found {
				found.Add(1)
			}
		},
		OnRead: func(r relay.Read) {
			if r.Lane != 0 || r.Took <= 0 {
				t.Errorf("got %+v", r)
			}
			read.Add(int64(r.Events))
		},
		OnLost: func(l relay.Lost) { lost <- l },
	}})
	wait.Until(t, "the relay waits for events", func() bool { return polls.Load() > 2 })
	write(t, pool, event("k", "1"), event("k", "2"))
	arrives(t, b, "2")
	wait.Until(t, "they were found and read", func() bool { return found.Load() > 0 && read.Load() >= 2 })
	pgtest.Exec(t, pool, "update holdfast.lane set owner = 'thief', epoch = epoch + 1, lease_until = now() + interval '1 second'")
	wait.Until(t, "the lane is lost", func() bool { return len(lost) > 0 })
	if l := <-lost; !l.Fenced {
		t.Errorf("got %+v", l)
	}
	// A lane that is dropped for another reason wrote nothing too late.
	write(t, pool, event("k", "3"))
	arrives(t, b, "3")
	for len(lost) > 0 {
		<-lost
	}
	pgtest.Exec(t, pool, "create function fail() returns trigger language plpgsql as $$ begin raise 'planned'; end $$; create trigger fail before insert on holdfast.parked for each row execute function fail()")
	b.set(refusing(relay.FaultRecord, "4"))
	write(t, pool, event("k", "4"))
	wait.Until(t, "the lane is lost again", func() bool { return len(lost) > 0 })
	if l := <-lost; l.Fenced {
		t.Errorf("got %+v", l)
	}
}
