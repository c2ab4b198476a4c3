package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// refusing is a publisher whose one partition can refuse everything.
type refusing struct {
	refuses   atomic.Bool
	published atomic.Int64
}

func (r *refusing) Partition(holdfast.Event) (int, int) { return 0, 1 }

func (r *refusing) Publish(_ context.Context, events []holdfast.Event) []error {
	errs := make([]error, len(events))
	for i := range errs {
		if r.refuses.Load() {
			errs[i] = &publish.Error{Fault: publish.FaultPartition, Err: errUnanswered}
		} else {
			r.published.Add(1)
		}
	}
	return errs
}

// A parked row that cannot be made due when its partition comes back, because a trigger raises an exception then, is made due
// when that is over: an event without a key has nobody before it whose end would wake it. (Seed 3203666940892501731.)
func TestStuckWaiting_ARowThatCouldNotBeMadeDueIsMadeDueLater(t *testing.T) {
	for _, key := range []string{"", "k"} {
		t.Run("key "+key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &refusing{}
				db, r, l := pacedRelay(t, p, func(string) {})
				r.c.ParkAfter, r.c.Lease, l.leaseUntil = 2*time.Second, 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
				var raises, raised atomic.Bool
				l.failures = 2 // the lane has failed so before
				db.Refuse = func(statement, id string) error {
					if raises.Load() && statement == "resume_held" {
						raised.Store(true)
						return &pgconn.PgError{Code: "P0001", Message: "not now"}
					}
					return nil
				}
				p.refuses.Store(true)
				raises.Store(true)
				tx := db.Begin()
				for _, id := range []string{"e1", "e2"} {
					tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: key})
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				takeAll(t, l)
				began := time.Now()
				until := func(what string, d time.Duration, done func() bool) {
					t.Helper()
					from := time.Now()
					if err := work(t, l, func() bool { return !done() && time.Since(from) < d }); err != nil {
						t.Fatal(err)
					}
					if !done() {
						t.Fatalf("after %v: %s", time.Since(began), what)
					}
				}
				until("the events are not parked", 30*time.Second, func() bool { return len(l.holds) > 0 && l.tracker.events == 0 })
				p.refuses.Store(false)
				until("no row is stuck: the test shows nothing", 30*time.Second, func() bool { return raised.Load() && len(l.stuck) > 0 && len(l.holds) == 0 })
				raises.Store(false)
				until("not both are published", stuckEvery+time.Minute, func() bool { return p.published.Load() >= 2 })
			})
		})
	}
}
