package relay

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// With ParkAfter -1 no partition is held, also not by an event that was parked for its topic.
func TestNeverParked_AParkedEventHoldsNoPartitionWhereNoneIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leaderless := &publish.Error{Topic: "orders", Partition: 1, Fault: publish.FaultPartition, Err: errors.New("no leader")}
		p := &eachAnswered{fails: map[string]error{"second": leaderless}}
		l := parkedTwice(t, p, func(l *lane) { l.r.c.ParkAfter = -1 })
		until := func(d time.Duration) {
			end := time.Now().Add(d)
			if err := work(t, l, func() bool { return time.Now().Before(end) }); err != nil {
				t.Fatal(err)
			}
			if l.holds[spot{"orders", 1}] != nil {
				t.Fatal("the partition is held")
			}
		}
		until(10 * time.Second)
		if n := times(p.sent()); n["first"] != 1 || n["second"] < 2 || n["second"] > 30 {
			t.Errorf("sent: %v; the first has to be sent once, and the second until it is taken", n)
		}
		p.mu.Lock()
		delete(p.fails, "second")
		p.mu.Unlock()
		until(10 * time.Second)
		if l.tracker.events > 0 || len(l.holds) > 0 || len(l.queues.parked) > 0 {
			t.Errorf("%d events are in memory, %v are held, %v are parked", l.tracker.events, l.heldSpots(), l.queues.parked)
		}
	})
}
