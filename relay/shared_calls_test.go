package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// sharing is an answering that takes many partitions in a call. The call takes as long as the slowest of them, and ends after
// half a second without an answer for any.
type sharing struct{ *answering }

const sharingEnds = 500 * time.Millisecond

func (s sharing) PublishTogether(ctx context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	s.mu.Lock()
	s.shared++
	takes := s.takes
	s.mu.Unlock()
	longest := time.Duration(0)
	for _, batch := range batches {
		partition, _ := s.Partition(batch[0])
		if takes != nil {
			longest = max(longest, takes(partition))
		}
	}
	time.Sleep(min(longest, sharingEnds)) // sleep: this is how long the request takes, by the bubble's clock
	for i, batch := range batches {
		errs := make([]error, len(batch))
		for n, e := range batch {
			switch {
			case longest > sharingEnds:
				errs[n] = &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultPartition, Err: context.DeadlineExceeded}
			case s.answer != nil:
				errs[n] = s.answer(e)
			}
			if errs[n] == nil {
				s.mu.Lock()
				s.taken = append(s.taken, taken2{e.ID, e.Key, time.Now()})
				s.mu.Unlock()
			}
		}
		answered(i, errs)
	}
}

// wideCrowd is a crowd that takes many partitions in a call.
type wideCrowd struct {
	*crowd
	mu      sync.Mutex
	batches [][]int // partitions of each shared call
	events  [][]string
	fails   func(partition int) error
}

func (c *wideCrowd) PublishTogether(_ context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	var partitions []int
	var ids []string
	for _, b := range batches {
		partitions = append(partitions, c.partOf(b[0]))
		for _, e := range b {
			ids = append(ids, e.ID)
		}
	}
	c.mu.Lock()
	c.batches, c.events = append(c.batches, partitions), append(c.events, ids)
	c.mu.Unlock()
	time.Sleep(c.takes) // sleep: this is how long the request takes, by the bubble's clock
	for i, b := range batches {
		errs := make([]error, len(b))
		if c.fails != nil {
			for n := range errs {
				errs[n] = c.fails(partitions[i])
			}
		}
		answered(i, errs)
	}
}

// wideLane is a lane whose partitions share calls, from so many on, with an event for each of n.
func wideLane(t *testing.T, c *wideCrowd, from, n int) (*simdb.DB, *lane) {
	t.Helper()
	var held atomic.Int64
	c.crowd = &crowd{takes: 10 * time.Millisecond, partOf: func(e holdfast.Event) int { n := 0; _, _ = fmt.Sscan(e.Key, &n); return n }}
	db, l := crowded(t, c.crowd, callsInAll, &held)
	l.r.shared = newSharedCalls(c, &l.r.env)
	l.r.shared.from = from
	writeCrowd(t, db, "e", n)
	takeAll(t, l)
	return db, l
}

func writeCrowd(t *testing.T, db *simdb.DB, id string, n int) {
	t.Helper()
	for i := range n {
		tx := db.Begin()
		tx.Append(0, simdb.Event{ID: fmt.Sprint(id, i), Topic: "orders", Key: fmt.Sprint(i % partitionsOfCrowd)})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSharedCalls_ManyPartitionsShareACall(t *testing.T) {
	for _, c := range []struct {
		name          string
		partitions    int
		shared, alone int // calls
	}{
		{"more than the least", partitionsOfCrowd, 2, 0}, // of 32 at first
		{"no more than the least", 32, 0, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				crowd := &wideCrowd{}
				_, l := wideLane(t, crowd, wideFrom, c.partitions)
				if err := work(t, l, func() bool { return l.tracker.events > 0 }); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if alone := int(crowd.most.Load()); len(crowd.batches) != c.shared || alone != c.alone {
					t.Errorf("%d calls were shared, of partitions %v, and %d alone at a time, want %d and %d", len(crowd.batches), crowd.batches, alone, c.shared, c.alone)
				}
				if l.calls != 0 || l.sharing != 0 || len(l.r.shared.spots) != 0 || len(l.r.shared.calls) != 0 {
					t.Errorf("%d calls are left, %d of them shared; of the shared calls %d partitions and %d calls", l.calls, l.sharing, len(l.r.shared.spots), len(l.r.shared.calls))
				}
			})
		})
	}
}

// What two lanes have for a partition while its call is under way is one batch of the next one.
func TestSharedCalls_LanesShareTheBatchOfAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &wideCrowd{}
		_, l := wideLane(t, c, 0, 0)
		at := &destination{spot: spot{"orders", 1}, route: &topicRoute{}}
		give := func(of *lane, ids ...string) {
			var events []holdfast.Event
			for _, id := range ids {
				events = append(events, holdfast.Event{ID: id, Topic: "orders", Key: "1"})
			}
			of.r.shared.add([]*laneShare{of.share(t.Context(), at, nil, events)})
		}
		other := newLane(l.r, "", l.leaseUntil)
		give(l, "a", "b")
		synctest.Wait()
		give(l, "c")
		give(other, "d", "e")
		time.Sleep(time.Second) // the bubble's clock
		synctest.Wait()
		if want := [][]string{{"a", "b"}, {"c", "d", "e"}}; fmt.Sprint(c.events) != fmt.Sprint(want) {
			t.Errorf("the calls had %v, want %v", c.events, want)
		}
		for of, want := range map[*lane]string{l: "[2 1]", other: "[2]"} {
			var got []int
			for _, a := range of.answered.take() {
				got = append(got, len(a.errs))
			}
			if fmt.Sprint(got) != want {
				t.Errorf("a lane got %v answers, want %s", got, want)
			}
		}
	})
}

// A partition that failed in a shared call goes alone, until it answers promptly.
func TestSharedCalls_APartitionThatFailedSharesNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &wideCrowd{fails: func(partition int) error {
			if partition == 3 {
				return &publish.Error{Topic: "orders", Partition: 3, Fault: publish.FaultPartition, Err: fmt.Errorf("no leader")}
			}
			return nil
		}}
		db, l := wideLane(t, c, 0, partitionsOfCrowd)
		drain := func() {
			if err := work(t, l, func() bool { return l.tracker.events > 0 }); err != nil {
				t.Fatal(err)
			}
		}
		drain()
		shares := func() (with int) {
			for _, call := range c.batches {
				if slices.Contains(call, 3) {
					with++
				}
			}
			return with
		}
		if shares() != 1 || c.most.Load() != 1 {
			t.Errorf("the partition was in %d shared calls and in %d of its own, want 1 and 1", shares(), c.most.Load())
		}
		writeCrowd(t, db, "f", partitionsOfCrowd) // its own call was prompt, so it shares again
		takeAll(t, l)
		drain()
		if shares() != 2 {
			t.Errorf("the partition was in %d shared calls, want 2", shares())
		}
	})
}

// Others are sent while a shared call is late.
func TestSharedCalls_ALateSharedCallKeepsNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &wideCrowd{}
		_, l := wideLane(t, c, 0, 0)
		c.takes = 10 * time.Second
		give := func(partition int) {
			to := &destination{spot: spot{"orders", partition}, route: &topicRoute{}}
			l.r.shared.add([]*laneShare{l.share(t.Context(), to, nil, []holdfast.Event{{ID: "e", Topic: "orders", Key: fmt.Sprint(partition)}})})
		}
		for partition := range sharedAtOnce + 1 {
			give(partition)
			synctest.Wait()
		}
		calls := func() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.batches) }
		if n := calls(); n != sharedAtOnce {
			t.Errorf("%d calls are under way, want %d", n, sharedAtOnce)
		}
		time.Sleep(promptly + time.Millisecond) // the bubble's clock
		synctest.Wait()
		if n := calls(); n != sharedAtOnce+1 {
			t.Errorf("after %v %d calls have begun, want %d", promptly, n, sharedAtOnce+1)
		}
		time.Sleep(time.Minute) // the bubble's clock: let all end
	})
}

// oneByOne is a publisher that answers for each partition of a call by itself. It notes when each call had which events.
type oneByOne struct {
	*crowd
	takes map[int]time.Duration // by partition
	mu    sync.Mutex
	began time.Time
	calls []string
}

func (o *oneByOne) PublishTogether(_ context.Context, batches [][]holdfast.Event, answered func(batch int, answers []error)) {
	call := time.Since(o.began).String()
	for _, b := range batches {
		for _, e := range b {
			call += " " + e.ID
		}
	}
	o.mu.Lock()
	o.calls = append(o.calls, call)
	o.mu.Unlock()
	var all sync.WaitGroup
	for i, b := range batches {
		all.Go(func() {
			time.Sleep(o.takes[o.partOf(b[0])]) // sleep: this is how long the broker takes, by the bubble's clock
			answered(i, make([]error, len(b)))
		})
	}
	all.Wait()
}

// What another lane has for a partition waits for the answer of that partition, and not for the others of its call.
func TestSharedCalls_AShareWaitsForTheAnswerOfItsPartitionOnly(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration // the partition that both lanes have events for
		want  string
	}{
		{"it answers promptly, and the call is late soon", promptly / 2, "250ms b"},
		{"it answers when the call is late", 2 * promptly, "500ms b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, l := wideLane(t, &wideCrowd{}, 0, 0)
				o := &oneByOne{takes: map[int]time.Duration{1: c.takes, 2: 30 * time.Second}, began: time.Now()}
				o.crowd = &crowd{partOf: func(e holdfast.Event) int { n := 0; _, _ = fmt.Sscan(e.Key, &n); return n }}
				l.r.shared.publisher = o
				shareOf := func(of *lane, partition int, id string) *laneShare {
					to := &destination{spot: spot{"orders", partition}, route: &topicRoute{}}
					return of.share(t.Context(), to, nil, []holdfast.Event{{ID: id, Topic: "orders", Key: fmt.Sprint(partition)}})
				}
				other := newLane(l.r, "", l.leaseUntil)
				l.r.shared.add([]*laneShare{shareOf(l, 1, "a"), shareOf(l, 2, "hangs")})
				synctest.Wait()
				l.r.shared.add([]*laneShare{shareOf(other, 1, "b")})
				time.Sleep(time.Minute) // the bubble's clock: let all end
				synctest.Wait()
				if want := []string{"0s a hangs", c.want}; !slices.Equal(o.calls, want) {
					t.Errorf("the calls were %q, want %q", o.calls, want)
				}
			})
		})
	}
}

// What a lane gave before it was lost is not sent after it.
func TestSharedCalls_NothingOfALostLaneIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &wideCrowd{}
		_, l := wideLane(t, c, 0, 0)
		lost, lose := context.WithCancel(t.Context())
		shareOf := func(of *lane, ctx context.Context, id string) *laneShare {
			to := &destination{spot: spot{"orders", 1}, route: &topicRoute{}}
			return of.share(ctx, to, nil, []holdfast.Event{{ID: id, Topic: "orders", Key: "1"}})
		}
		old := newLane(l.r, "", time.Now().Add(-48*time.Hour)) // its lease has run out
		l.r.shared.add([]*laneShare{shareOf(l, t.Context(), "a")})
		l.r.shared.add([]*laneShare{shareOf(l, lost, "b"), shareOf(old, t.Context(), "c"), shareOf(l, t.Context(), "d")})
		lose()
		time.Sleep(time.Second) // the bubble's clock
		synctest.Wait()
		if want := [][]string{{"a"}, {"d"}}; fmt.Sprint(c.events) != fmt.Sprint(want) {
			t.Errorf("the calls had %v, want %v", c.events, want)
		}
		if got := old.answered.take(); len(got) != 1 || got[0].errs[0] != errLost {
			t.Errorf("the lane without a lease got the answers %v", got)
		}
	})
}

func TestSharedCalls_NextShared(t *testing.T) {
	for _, c := range []struct {
		most int
		took time.Duration
		want int
	}{
		{32, time.Millisecond, 40},
		{120, time.Millisecond, sharedMost},
		{sharedMost, promptly/2 - 1, sharedMost},
		{sharedMost, promptly / 2, sharedMost / 2},
		{20, time.Second, sharedLeast},
		{sharedLeast, time.Second, sharedLeast},
		{sharedLeast, time.Millisecond, 20},
	} {
		if got := nextShared(c.most, c.took); got != c.want {
			t.Errorf("after a call of %d that took %v the next has %d, want %d", c.most, c.took, got, c.want)
		}
	}
}
