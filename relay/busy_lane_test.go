package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

// A lane that waits for Postgres takes no answers meanwhile. That is no fault of the partitions, which have answered, while those of
// other lanes do: none is held, and nothing is parked, which would be more work for the same Postgres.
func TestBusyLane_ALaneThatWaitsForPostgresHoldsNoPartition(t *testing.T) {
	for _, c := range []struct {
		name  string
		waits time.Duration
		batch int
	}{
		{"longer than ParkAfter", 12 * time.Second, 200},
		{"longer than a second, while it is full", 2 * time.Second, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, waited := time.Now(), false
				var s *twelve
				a := &answering{takes: func(int) time.Duration { return 5 * time.Millisecond }}
				db, r, l := pacedRelay(t, a, func(name string) {
					if name == "due" && !waited && time.Since(began) > 5*time.Second && hasCalls(s) {
						waited = true
						time.Sleep(c.waits)
					}
				})
				s = twelveOf(a, db, r, l)
				r.c.BatchSize, l.reader.limit = c.batch, c.batch
				r.c.Observer.OnWaiting = func(p Waiting) { t.Errorf("an event of key %s was parked: %s", p.Event.Key, p.Why) }
				r.c.Observer.OnHeld = func(h Held) { t.Errorf("partition %d was held: %v", h.Partition, h.Err) }
				others := time.NewTicker(100 * time.Millisecond)
				done := make(chan struct{})
				go func() { // partitions answer other lanes
					for {
						select {
						case now := <-others.C:
							r.answers.Store(now.UnixNano())
							r.prompt.Store(now.UnixNano())
						case <-done:
							return
						}
					}
				}()
				s.run(t, 10*time.Second)
				close(done)
				if !waited {
					t.Error("the lane did not wait")
				}
				s.check(t)
			})
		})
	}
}

// hasCalls says whether the lane has calls under way.
func hasCalls(s *twelve) bool { return s != nil && s.l.calls > 0 }

// How soon a partition has answered goes by when the answer came, not by when the lane took it.
func TestBusyLane_AnAnswerIsLateByWhenItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTwelve(t, &answering{takes: func(int) time.Duration { return 5 * time.Millisecond }})
		d := s.l.destinationOf(&logEvent{Event: holdfast.Event{Topic: "orders", Key: "0"}})
		s.l.holds[d.spot] = &hold{at: time.Now()}
		d.enqueue(&pending{event: &logEvent{Event: holdfast.Event{Topic: "orders", Key: "0"}}, item: item{queue: queue{"orders", "0"}}}, time.Now())
		d.begin(d.take(1, 1), nil, time.Now(), time.Second)
		s.l.calls++
		answer := answered{to: d, events: make([]holdfast.Event, 1), errs: make([]error, 1), at: time.Now().Add(5 * time.Millisecond)}
		time.Sleep(3 * time.Second)
		if err := s.l.settle(t.Context(), answer); err != nil {
			t.Fatal(err)
		}
		if h := s.l.holds[d.spot]; h.late || s.l.r.prompt.Load() == 0 || !s.l.r.shared.takes(d.spot) {
			t.Errorf("an answer after 5 ms is taken for a late one: %+v", h)
		}
	})
}
