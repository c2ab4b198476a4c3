package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// partitionOfNumber is the partition of a key that ends with its number.
func partitionOfNumber(e holdfast.Event) int {
	n := 0
	_, _ = fmt.Sscan(e.Key[strings.IndexByte(e.Key, '/')+1:], &n)
	return n
}

// noisyCrowd is a lane with an event of a noisy tenant for each of so many partitions.
func noisyCrowd(t *testing.T, c *crowd, calls, partitions int) *lane {
	t.Helper()
	c.partOf = partitionOfNumber
	var held atomic.Int64
	db, l := crowded(t, c, callsInAll, &held)
	l.separator, l.r.noisyCalls, l.r.c.BatchSize, l.reader.limit = "/", newCallSlots(calls), 100, 100
	tx := db.Begin()
	for n := range partitions {
		tx.Append(0, simdb.Event{ID: fmt.Sprint("e", n), Topic: "orders", Key: fmt.Sprint("acme/", n)})
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	takeAll(t, l)
	l.noisy = []string{"acme"}
	return l
}

// What is under way cannot be overtaken, so little of a noisy tenant is, and a quiet one's event does not wait for its turn.
func TestNoisySlots_AQuietTenantDoesNotWaitForANoisyOnesCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 100 * time.Millisecond}
		l := noisyCrowd(t, c, 2, partitionsOfCrowd/2)
		var quiet, all time.Duration
		began := time.Now()
		l.r.c.Observer.OnPublished = func(_ int, events []holdfast.Event) {
			for _, e := range events {
				if all = time.Since(began); e.Key == "beta/7" {
					quiet = time.Since(began)
					if len(events) != 1 {
						t.Errorf("%d events were sent with it", len(events)-1)
					}
				}
			}
		}
		first := true
		if err := work(t, l, func() bool {
			if first && l.calls > 0 { // two of acme's, and its others wait
				first = false
				if l.calls != 2 || !l.refusedNoisy {
					t.Errorf("%d calls are under way, want 2", l.calls)
				}
				l.accept(page{events: []logEvent{{Event: holdfast.Event{ID: "b", Topic: "orders", Key: "beta/7"}, seq: 1000}}, after: l.cursor, moves: true, still: true, noisy: l.noisy})
			}
			return l.tracker.events > 0 && time.Since(began) < time.Minute
		}); err != nil {
			t.Fatal(err)
		}
		if quiet > 150*time.Millisecond || quiet == 0 {
			t.Errorf("an event of the quiet tenant was acknowledged after %v, want one call's time", quiet)
		}
		if c.most.Load() != 3 || all < 900*time.Millisecond {
			t.Errorf("%d calls at a time, and all after %v: want two of the noisy tenant, and the other's", c.most.Load(), all)
		}
	})
}

// The calls of a lane that has ended, that is about to, or that waits for Postgres take as long as they take. Others do not wait for them.
func TestNoisySlots_ANoisyCallThatHangsGivesItsTurnToOthers(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, l *lane){
		"it waits for something else": func(*testing.T, *lane) {},
		"it is lost":                  func(_ *testing.T, l *lane) { l.giveBack() },
		"it is handed over": func(t *testing.T, l *lane) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*slowAfter)
			defer cancel()
			if err := l.finish(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it has finished: the test shows nothing: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &crowd{hangs: func(holdfast.Event) bool { return true }}
				l := noisyCrowd(t, c, 2, 2)
				if err := l.turn(t.Context()); err != nil || l.calls != 2 {
					t.Fatalf("%d calls, %v", l.calls, err)
				}
				other := newLane(l.r, l.token, l.leaseUntil)
				if l.r.noisyCalls.take(other) != nil {
					t.Fatal("a third call is started of two")
				}
				began := time.Now()
				go then(t, l)
				time.Sleep(slowAfter + 100*time.Millisecond)
				if l.r.noisyCalls.take(other) == nil {
					t.Errorf("another lane has no turn after %v", time.Since(began))
				}
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// What a lane has sent that lies ahead of its cursor is repeated by its next owner, so what lies before it is sent at once: nothing more
// will overtake it. With four calls at a time, of all lanes, it would not end in the time that a stop has.
func TestNoisySlots_ALaneThatFinishesSendsAllPartitionsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 100 * time.Millisecond}
		l := noisyCrowd(t, c, 1, 30)
		l.destinations[29].queue[0].inCall = true // the last one has been sent
		began := time.Now()
		if err := l.finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("it took %v for what 30 partitions take at a time", took)
		}
		if most := c.most.Load(); most < 20 {
			t.Errorf("%d calls at a time", most)
		}
	})
}

// A partition that was unavailable for a moment waits for its turn at a backlog's calls like the others. It is not held for that.
func TestNoisySlots_APartitionThatWasRefusedIsNotHeldForWaitingForANoisyTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{takes: 900 * time.Millisecond}
		l := noisyCrowd(t, c, 1, 30)
		refused := &refusingOnce{crowd: c, key: "acme/0"}
		l.r.publisher, l.partitioner = refused, refused
		var held []string
		l.r.c.Observer.OnWaiting = func(p Waiting) { held = append(held, p.Event.Key) }
		began := time.Now()
		if err := work(t, l, func() bool { return l.tracker.events > 0 && time.Since(began) < 5*time.Minute }); err != nil {
			t.Fatal(err)
		}
		if !refused.did || len(held) > 0 {
			t.Errorf("refused: %t; %v are parked", refused.did, held)
		}
	})
}

// refusingOnce is a crowd of which the partition of a key is unavailable once.
type refusingOnce struct {
	*crowd
	key string
	did bool
}

func (r *refusingOnce) Publish(ctx context.Context, events []holdfast.Event) []error {
	if events[0].Key == r.key && !r.did {
		r.did = true
		return []error{&publish.Error{Topic: "orders", Fault: publish.FaultPartition, Err: errors.New("no leader")}}
	}
	return r.crowd.Publish(ctx, events)
}
