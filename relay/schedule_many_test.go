package relay

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// Whatever falls due at once, the lane publishes while it is moved into the log.
func TestScheduleMany_EventsArePublishedWhileScheduledOnesAreMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due, move := 15*usualBounds.moves, 100*time.Millisecond
		a := &answering{takes: func(int) time.Duration { return time.Millisecond }}
		db, r, l := pacedRelay(t, a, func(name string) {
			if name == "move_scheduled" {
				time.Sleep(move)
			}
		})
		s := twelveOf(a, db, r, l)
		tx := db.Begin()
		for n := range due {
			tx.Schedule(simdb.Scheduled{Lane: 0, DueAt: time.Now(), ID: fmt.Sprint("scheduled ", n), Topic: "orders", Key: "late"})
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		l.tasks.Or(scheduledDue)
		signal(l.tasksDue)
		s.run(t, 5*time.Second)
		if db.Scheduled() > 0 {
			t.Errorf("%d of %d events that are due are not moved", db.Scheduled(), due)
		}
		waited := s.delays(func(key string) bool { return key != "late" })
		if most := waited[len(waited)-1]; most > 5*move {
			t.Errorf("an event waited %v while %d scheduled ones were moved", most, due)
		}
	})
}
