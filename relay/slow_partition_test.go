package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// answering is a publisher with partitions, named by the keys of their events, that answers as a test says. It may take its
// time.
type answering struct {
	mu     sync.Mutex
	answer func(e holdfast.Event) error // nil = acknowledge
	takes  func(partition int) time.Duration
	calls  map[int]int
	shared int // calls of many partitions
	taken  []taken2
}

// taken2 is an event that was acknowledged, and when.
type taken2 struct {
	id  string
	key string
	at  time.Time
}

const partitionsOfTest = 12

func (a *answering) Partition(e holdfast.Event) (partition, partitions int) {
	n, _ := strconv.Atoi(e.Key)
	return n % partitionsOfTest, partitionsOfTest
}

func (a *answering) set(answer func(e holdfast.Event) error) {
	a.mu.Lock()
	a.answer = answer
	a.mu.Unlock()
}

func (a *answering) Publish(ctx context.Context, events []holdfast.Event) []error {
	partition, _ := a.Partition(events[0])
	a.mu.Lock()
	if a.calls == nil {
		a.calls = map[int]int{}
	}
	a.calls[partition]++
	takes, answer := a.takes, a.answer
	a.mu.Unlock()
	if takes != nil {
		select {
		case <-time.After(takes(partition)):
		case <-ctx.Done():
		}
	}
	errs := make([]error, len(events))
	for i, e := range events {
		if answer != nil {
			errs[i] = answer(e)
		}
		if errs[i] == nil {
			a.mu.Lock()
			a.taken = append(a.taken, taken2{e.ID, e.Key, time.Now()})
			a.mu.Unlock()
		}
	}
	return errs
}

// work works a lane as run does, without a reader, while it should.
func work(t *testing.T, l *lane, should func() bool) error {
	t.Helper()
	for {
		if err := l.turn(t.Context()); err != nil {
			return err
		}
		if !should() {
			return nil
		}
		timer, stop := l.timer()
		var err error
		select {
		case <-l.answered.some:
			err = l.settleAll(t.Context())
		case <-l.tasksDue:
			err = l.runTasks(t.Context())
		case <-timer:
			err = l.runTasks(t.Context())
		case <-time.After(10 * time.Millisecond): // sleep: should may have changed by itself
		}
		stop()
		if err != nil {
			return err
		}
	}
}

// twelve is a lane with twelve partitions that get an event each every 50 ms, of its own key.
type twelve struct {
	*answering
	db      *simdb.DB
	l       *lane
	written map[string]time.Time
	keys    map[string][]string // ids, in order
	more    []string            // keys besides one of each partition
	most    int                 // events in memory
}

func newTwelve(t *testing.T, a *answering) *twelve {
	db, r, l := pacedRelay(t, a, func(string) {})
	return twelveOf(a, db, r, l)
}

func twelveOf(a *answering, db *simdb.DB, r *Relay, l *lane) *twelve {
	r.c.BatchSize, r.c.ParkAfter = 200, 10*time.Second
	r.c.Lease, l.leaseUntil = 24*time.Hour, time.Now().Add(24*time.Hour) // nobody saves
	l.reader.limit = 200
	return &twelve{answering: a, db: db, l: l, written: map[string]time.Time{}, keys: map[string][]string{}}
}

// share lets the partitions share calls, three each: a part of them, as of a thousand.
func (tw *twelve) share() {
	tw.l.r.shared = newSharedCalls(sharing{tw.answering}, &tw.l.r.env)
	tw.l.r.shared.from, tw.l.r.shared.largest = 3, 3
}

// run writes for a while, and lets the lane work until all is published, or for as long again and a minute.
func (tw *twelve) run(t *testing.T, d time.Duration) {
	t.Helper()
	began, n := time.Now(), 0
	nextAt, polled, unread := began, began, false
	done := func() bool {
		now := time.Now()
		for ; nextAt.Before(began.Add(d)) && !now.Before(nextAt); nextAt = nextAt.Add(50 * time.Millisecond) {
			tx := tw.db.Begin()
			keys := slices.Clone(tw.more)
			for p := range partitionsOfTest {
				keys = append(keys, fmt.Sprint(p))
			}
			for _, key := range keys {
				n++
				id := fmt.Sprint("e", n)
				tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: key})
				tw.written[id] = now
				tw.keys[key] = append(tw.keys[key], id)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			unread = true
		}
		if now.After(polled) { // as the poller does
			polled = now
			tw.l.tasks.Or(parkedDue)
			signal(tw.l.tasksDue)
		}
		for unread && tw.l.takesPages() {
			p, err := tw.l.reader.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p.moves {
				tw.l.accept(p)
			}
			tw.most = max(tw.most, tw.l.tracker.events)
			unread = !p.last
		}
		tw.mu.Lock()
		defer tw.mu.Unlock()
		return now.Sub(began) > 2*d+time.Minute || now.Sub(began) > d && len(tw.taken) >= len(tw.written) && len(tw.db.Parked()) == 0
	}
	if err := work(t, tw.l, func() bool { return !done() }); err != nil {
		t.Fatal(err)
	}
}

// delays are how long the events of partitions waited for their acknowledgement, in order.
func (tw *twelve) delays(of func(key string) bool) (all []time.Duration) {
	seen := map[string]bool{}
	for _, e := range tw.taken {
		if of(e.key) && !seen[e.id] {
			seen[e.id] = true
			all = append(all, e.at.Sub(tw.written[e.id]))
		}
	}
	slices.Sort(all)
	return all
}

// check asks that everything arrived, each key in its order.
func (tw *twelve) check(t *testing.T) {
	t.Helper()
	for key, want := range tw.keys {
		var got []string
		seen := map[string]bool{}
		for _, e := range tw.taken {
			if e.key == key && !seen[e.id] {
				seen[e.id] = true
				got = append(got, e.id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("key %s: %d of %d events arrived, or not in order", key, len(got), len(want))
		}
	}
	if n := len(tw.db.Parked()); n > 0 {
		t.Errorf("%d events are still parked", n)
	}
}

// One partition hurts only itself, whatever is the matter with it.
func TestSlowPartition_APartitionInTroubleDelaysNoOther(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	trouble := 70 * time.Second
	if testing.Short() {
		trouble = 15 * time.Second
	}
	noLeader := func(e holdfast.Event) error {
		return &publish.Error{Topic: e.Topic, Partition: 0, Fault: publish.FaultPartition, Err: errors.New("no leader")}
	}
	refused := func(e holdfast.Event) error {
		return &publish.Error{Topic: e.Topic, Partition: 0, Fault: publish.FaultRecord, Err: errors.New("too large")}
	}
	for _, c := range []struct {
		name    string
		trouble func(s *twelve, ago time.Duration, e holdfast.Event) error
		takes   func(ago time.Duration) time.Duration
		letters bool // its events become dead letters
	}{
		{name: "it acknowledges after 3 s", takes: func(time.Duration) time.Duration { return 3 * time.Second }},
		{name: "it has no leader for 8 s", trouble: func(_ *twelve, ago time.Duration, e holdfast.Event) error {
			if ago < 8*time.Second {
				return noLeader(e)
			}
			return nil
		}},
		{name: "it hangs for 60 s", takes: func(ago time.Duration) time.Duration { return max(0, min(10*time.Second, 60*time.Second-ago)) },
			trouble: func(_ *twelve, ago time.Duration, e holdfast.Event) error {
				if ago < 60*time.Second {
					return &publish.Error{Topic: e.Topic, Partition: 0, Fault: publish.FaultBroker, Err: context.DeadlineExceeded}
				}
				return nil
			}},
		{name: "it refuses all the time", trouble: func(_ *twelve, ago time.Duration, e holdfast.Event) error {
			if ago < trouble+5*time.Second {
				return noLeader(e)
			}
			return nil
		}},
		{name: "it refuses every record", letters: true, trouble: func(_ *twelve, ago time.Duration, e holdfast.Event) error { return refused(e) }},
	} {
		each := func(t *testing.T, shared bool) {
			synctest.Test(t, func(t *testing.T) {
				a := &answering{}
				s := newTwelve(t, a)
				longest := 100 * time.Millisecond
				if shared {
					s.share()
					longest = slowAfter + 200*time.Millisecond // once: those that had a call with it
				}
				s.l.r.c.Retry.Attempts = 2
				began := time.Now()
				a.takes = func(partition int) time.Duration {
					if partition == 0 && c.takes != nil {
						return 2*time.Millisecond + c.takes(time.Since(began))
					}
					return 2 * time.Millisecond
				}
				a.set(func(e holdfast.Event) error {
					if e.Key == "0" && c.trouble != nil {
						return c.trouble(s, time.Since(began), e)
					}
					return nil
				})
				s.run(t, trouble)
				if c.letters {
					if n := len(s.db.Letters()); n != len(s.keys["0"]) {
						t.Errorf("%d dead letters of %d events", n, len(s.keys["0"]))
					}
					delete(s.keys, "0")
				}
				s.check(t)
				others := s.delays(func(key string) bool { return key != "0" })
				if len(others) == 0 {
					t.Fatal("nothing arrived")
				}
				p99, most := others[len(others)*99/100], others[len(others)-1]
				if shared && a.shared < 100 {
					t.Errorf("%d calls were shared", a.shared)
				}
				if p99 > 20*time.Millisecond || most > longest {
					t.Errorf("the others waited for %v (p99) and %v at most", p99, most)
				}
				if s.most > 600 {
					t.Errorf("%d events were in memory, at pages of 200", s.most)
				}
				t.Logf("others: p50 %v, p99 %v, max %v; in memory %d; calls of partition 0: %d, shared ones %d", others[len(others)/2], p99, most, s.most, a.calls[0], a.shared)
			})
		}
		t.Run(c.name, func(t *testing.T) { each(t, false) })
		t.Run(c.name+", and calls are shared", func(t *testing.T) { each(t, true) })
	}
}

// A publisher may call what is the matter with one event its partition's trouble. The other keys of that partition go on: each
// of them has its turn when it is tried.
func TestSlowPartition_AKeyThatIsAlwaysRefusedStopsNoOtherOfItsPartition(t *testing.T) {
	t.Parallel()
	trouble := 60 * time.Second
	if testing.Short() {
		trouble = 30 * time.Second
	}
	synctest.Test(t, func(t *testing.T) {
		a := &answering{takes: func(int) time.Duration { return 2 * time.Millisecond }}
		s := newTwelve(t, a)
		s.more = []string{"12", "24"} // of partition 0
		began := time.Now()
		a.set(func(e holdfast.Event) error {
			if e.Key == "0" && time.Since(began) < trouble {
				return &publish.Error{Topic: e.Topic, Partition: 0, Fault: publish.FaultPartition, Err: errors.New("it is refused")}
			}
			return nil
		})
		s.run(t, trouble)
		s.check(t)
		for _, key := range s.more {
			delays := s.delays(func(k string) bool { return k == key })
			if most := delays[len(delays)-1]; most > 10*time.Second {
				t.Errorf("an event of key %s, which was never refused, waited for %v", key, most)
			} else {
				t.Logf("key %s: p50 %v, max %v", key, delays[len(delays)/2], most)
			}
		}
		others := s.delays(func(key string) bool { return key != "0" && !slices.Contains(s.more, key) })
		if p99 := others[len(others)*99/100]; p99 > 20*time.Millisecond {
			t.Errorf("the other partitions waited for %v (p99)", p99)
		}
	})
}

// A broker that has more to do than it can is slow at every partition. To park its events would be more work for it.
func TestSlowPartition_ABrokerThatIsSlowAtAllPartitionsHasNoneOfThemHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &answering{}
		a.takes = func(partition int) time.Duration {
			return 1200*time.Millisecond + time.Duration(partition)*50*time.Millisecond
		}
		s := newTwelve(t, a)
		s.l.reader.limit, s.l.r.c.BatchSize = 150, 150 // the lane is full most of the time
		s.l.r.c.Observer.OnWaiting = func(p Waiting) { t.Errorf("an event of key %s was parked: %s", p.Event.Key, p.Why) }
		s.run(t, 30*time.Second)
		s.check(t)
	})
}

// When a broker is back one partition answers first. The others have waited as long as the broker was away, which is no fault of
// theirs: parking them all would be more work for a broker that has just started.
func TestSlowPartition_TheEndOfAnOutageHoldsNoPartition(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, began := &answering{}, time.Now()
		away := func() bool { return time.Since(began) > 5*time.Second && time.Since(began) < 30*time.Second }
		a.answer = func(e holdfast.Event) error {
			if !away() {
				return nil
			}
			partition, _ := a.Partition(e)
			return &publish.Error{Topic: e.Topic, Partition: partition, Fault: publish.FaultBroker, Err: errors.New("connection refused")}
		}
		a.takes = func(partition int) time.Duration {
			if away() || partition == 0 {
				return time.Millisecond
			}
			return 700 * time.Millisecond
		}
		s := newTwelve(t, a)
		s.l.r.c.Observer.OnWaiting = func(p Waiting) { t.Errorf("an event of key %s was parked: %s", p.Event.Key, p.Why) }
		s.run(t, time.Minute)
		s.check(t)
	})
}

// Replicas that are late let calls time out, whose records arrive all the same. Sent again whole, they time out again: that is as
// much work as before and for nothing, and it never ends.
func TestSlowPartition_CallsThatTimeOutAreNotSentAgainWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const bound, each, most = 2 * time.Second, 10 * time.Millisecond, 16
		began, written := time.Now(), 0
		s := newTwelve(t, &answering{})
		s.l.r.c.ParkAfter = -1
		late := &timingOut{answering: s.answering, answer: func(n int) bool {
			if time.Since(began) > 10*time.Second && n <= most {
				time.Sleep(time.Duration(n) * each) // sleep: by the clock of synctest
				return true
			}
			time.Sleep(bound) // sleep: by the clock of synctest
			written += n
			return false
		}}
		s.l.r.publisher, s.l.partitioner = late, late
		s.run(t, 40*time.Second)
		s.check(t)
		if all := len(s.keys["0"]); written > all*3/4 {
			t.Errorf("of %d events %d were sent for nothing", all, written)
		} else {
			t.Logf("of %d events %d were sent for nothing", all, written)
		}
	})
}

// timingOut is a publisher one of whose partitions takes its time for each event.
type timingOut struct {
	*answering
	answer func(events int) (acknowledged bool)
}

func (t *timingOut) Publish(ctx context.Context, events []holdfast.Event) []error {
	if partition, _ := t.Partition(events[0]); partition != 0 || t.answer(len(events)) {
		return t.answering.Publish(ctx, events)
	}
	errs := make([]error, len(events))
	for i, e := range events {
		errs[i] = &publish.Error{Topic: e.Topic, Fault: publish.FaultPartition, Err: errors.New("request timed out")}
	}
	return errs
}
