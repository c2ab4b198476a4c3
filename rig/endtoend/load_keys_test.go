package endtoend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// hanger is a handler that ignores its context for events that ask for it, until the test ends.
type hanger struct {
	times int64 // how often each of them hangs; -1 for ever
	hung  atomic.Int64
	runs  sync.Map // of *atomic.Int64, by event id
	end   chan struct{}
}

func hangs(t testing.TB, times int64) *hanger {
	h := &hanger{times: times, end: make(chan struct{})}
	t.Cleanup(func() { close(h.end) })
	return h
}

func (h *hanger) handle(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	// The effect comes first: whatever a handler that hangs has written must not stay.
	if err := endtoend.PutEffect(ctx, tx, "billing", e); err != nil {
		return err
	}
	if e.Headers["do"] == "hang" {
		n, _ := h.runs.LoadOrStore(e.ID, new(atomic.Int64))
		if run := n.(*atomic.Int64).Add(1); h.times < 0 || run <= h.times {
			h.hung.Add(1)
			<-h.end
		}
	}
	return nil
}

func quickToHang(c *inbox.Config) {
	c.Timeout, c.Grace = 500*time.Millisecond, 200*time.Millisecond
	c.Retry = retry.Policy{Attempts: 10, Base: 50 * time.Millisecond, Cap: 100 * time.Millisecond}
}

func TestLoadKeys_AHandlerThatHangsDelaysOtherKeysOfItsPartitionByLittle(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	// Not parallel: it compares delays, which depend on what else runs.
	s := setupConsumers(t, 1)
	lasting := 6 * time.Second
	if testing.Short() {
		lasting = 2 * time.Second
	}
	h := hangs(t, 4) // in place, as often as it may, and out of the stored events once
	stop := s.Consume("billing", h.handle, quickToHang)
	stopControl := s.Consume("control", endtoend.EffectOf("control"), nil) // in which nothing hangs: what delays it too is the machine's
	s.publish(s.next("k0", ""))
	s.Arrive("billing", "control")
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	wait := s.flow(ctx, 100, s.any(20, ""))
	s.Await("events flow", func() bool { return s.Count("select count(*) from effect") > 20 })
	s.publish(s.next("stuck", "hang"), s.next("stuck", ""), s.next("stuck", ""))
	wait()
	v := s.Finish(nil, []func(){stop, stopControl}, "billing", "control")
	cold, stuck := s.delays("e.consumer = 'billing' and e.key <> 'stuck'"), s.delays("e.consumer = 'billing' and e.key = 'stuck'")
	control := s.delays("e.consumer = 'control'")
	t.Logf("%d times a handler hung; other keys: %s, where nothing hangs: %s; its own: %s; %s", h.hung.Load(), cold, control, stuck, v)
	v.MustHold(t)
	if h.hung.Load() != 4 {
		t.Errorf("the handler hung %d times, want 4", h.hung.Load())
	}
	// One turn of the handler that hangs takes 700 ms at least, and it had four.
	if stuck.max < 2800*time.Millisecond || cold.p99-control.p99 > stuck.max/2 {
		t.Errorf("other keys were delayed by p99 %v, %v where nothing hangs, the key that hung by %v", cold.p99, control.p99, stuck.max)
	}
}

func TestLoadKeys_TooManyHungHandlersStopTheConsumer(t *testing.T) {
	t.Parallel()
	s := setupConsumers(t, 1)
	h := hangs(t, -1)
	var events []holdfast.Event
	for i := range 60 {
		do := ""
		if i%20 == 10 {
			do = "hang"
		}
		events = append(events, s.next(fmt.Sprint("k", i%7), do))
	}
	s.publish(events...)
	err := s.runsOut(s.consumer(h.handle, func(c *inbox.Config) { quickToHang(c); c.MaxHung = 3 }), s.group())
	done := s.Count("select count(*) from effect")
	t.Logf("%d of 60 were handled beside %d handlers that hung; it says: %v", done, h.hung.Load(), err)
	if !errors.Is(err, inbox.ErrHungHandlers) {
		t.Errorf("it ended with %v", err)
	}
	if h.hung.Load() < 3 || h.hung.Load() > 3+8 { // a worker each may be in its handler
		t.Errorf("%d handlers hung", h.hung.Load())
	}
	v := s.ends(s.Consume("billing", endtoend.EffectOf("billing"), nil))
	t.Log(v)
	v.MustHold(t)
}

func TestLoadKeys_AHotKeyDelaysTheOthersByLittle(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	// Not parallel: it compares delays, which depend on what else runs.
	s := setupConsumers(t, 1)
	lasting := 6 * time.Second
	if testing.Short() {
		lasting = 1500 * time.Millisecond
	}
	stop := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.publish(s.next("k0", ""))
	s.Arrive("billing")

	// 1. A steady flow of ten cold keys, alone, and then with a hot one that is nine tenths of all.
	flow := func(prefix string, perSecond int, hot bool) delays {
		ctx, cancel := context.WithTimeout(t.Context(), lasting)
		defer cancel()
		s.flow(ctx, perSecond, func(rng *rand.Rand) holdfast.Event {
			if hot && rng.IntN(10) > 0 {
				return s.next(prefix+" hot", "")
			}
			return s.next(fmt.Sprint(prefix, rng.IntN(10)), "")
		})()
		s.Arrive("billing")
		return s.delays("e.key like $1 || '_'", prefix)
	}
	alone := flow("alone ", 10, false)
	beside := flow("beside", 100, true)
	t.Logf("cold keys alone: %s; beside a hot key: %s; the hot key: %s", alone, beside, s.delays("e.key = 'beside hot'"))
	if limit := 3*alone.max + 5*time.Second; beside.p99 > limit {
		t.Errorf("cold keys are delayed by p99 %v beside a hot key, want at most %v", beside.p99, limit)
	}
	stop()

	// 2. Bursts, for a handler that takes 2 ms. They do not make the cold keys wait for the hot one: what of it does not fit into what
	// may be in progress is stored.
	sizes := []int{800, 2400}
	if testing.Short() {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		var events []holdfast.Event
		hot, cold := fmt.Sprint("hot of ", size), fmt.Sprint("cold of ", size, " ")
		for i := range size {
			if i%10 == 5 {
				events = append(events, s.next(fmt.Sprint(cold, i/10%10), ""))
			} else {
				events = append(events, s.next(hot, ""))
			}
		}
		s.publish(events...)
		stop = s.Consume("billing", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			after(ctx, 2*time.Millisecond)
			return endtoend.PutEffect(ctx, tx, "billing", e)
		}, nil)
		v := s.ends(stop)
		var lastCold, lastHot float64
		err := s.Db.QueryRow(t.Context(), `select extract(epoch from max(at) filter (where key <> $1) - min(at)), extract(epoch from max(at) filter (where key = $1) - min(at))
			from effect where key = $1 or key like $2 || '_'`, hot, cold).Scan(&lastCold, &lastHot)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("a burst of %d: the last cold event was handled after %.2f s, the last hot one after %.2f s; %s", size, lastCold, lastHot, v)
		v.MustHold(t)
		if lastCold > 0.75*lastHot {
			t.Errorf("the cold keys took %.2f s and the hot one %.2f s: they wait for it", lastCold, lastHot)
		}
	}
}

// holding is how many partitions a node has.
type holding struct{ partitions atomic.Int64 }

func (h *holding) observe(c *inbox.Config) {
	c.Observer.OnAssigned = func(inbox.Assignment, int64) { h.partitions.Add(1) }
	c.Observer.OnRevoked = func(inbox.Assignment, bool) { h.partitions.Add(-1) }
}

func TestLoadKeys_HeadsThatFailHoldTheirFollowersAndNobodyElse(t *testing.T) {
	t.Parallel()
	s := setupConsumers(t, 3)
	const keys, each, fails = 12, 12, 5
	var runs sync.Map
	var fixed atomic.Bool
	handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		n, _ := runs.LoadOrStore(e.ID, new(atomic.Int64))
		run := n.(*atomic.Int64).Add(1)
		if err := endtoend.PutEffect(ctx, tx, "billing", e); err != nil {
			return err
		}
		switch e.Headers["do"] {
		case "fail":
			if run <= fails {
				return fmt.Errorf("failure %d", run)
			}
		case "die":
			if !fixed.Load() {
				return errors.New("this cannot be")
			}
		}
		return nil
	}
	config := func(c *inbox.Config) {
		c.HoldKey = true
		c.Retry = retry.Policy{Attempts: fails + 1, Base: 50 * time.Millisecond, Cap: 400 * time.Millisecond}
	}

	// 1. Of each three keys one is well, one has a head that fails at first, and one that fails for good.
	var events []holdfast.Event
	kinds := []string{"well", "fail", "die"}
	for n := range each {
		for k := range keys {
			do := ""
			if n == 2 {
				do = kinds[k%3]
			}
			events = append(events, s.next(fmt.Sprint(kinds[k%3], k), do))
		}
	}
	var nodes [2]holding
	var stops []func()
	for i := range nodes {
		stops = append(stops, s.Consume("billing", handler, func(c *inbox.Config) { config(c); nodes[i].observe(c) }))
	}
	// A node that joins later has others hand over what they handle, which runs once more then.
	s.Await("the nodes share the partitions", func() bool {
		one, other := nodes[0].partitions.Load(), nodes[1].partitions.Load()
		return one > 0 && other > 0 && one+other == int64(s.partitions)
	})
	s.publish(events[:len(events)/2]...)
	s.publish(events[len(events)/2:]...)
	const dead = keys / 3
	s.Await("what can be handled is, and the rest is held", func() bool {
		return s.Count("select count(*) from holdfast.letter where state = 'open' and holds") == dead &&
			s.Count("select count(*) from effect") == keys*each-dead*(each-2) && s.Count("select count(*) from holdfast.stored") == dead*(each-3)
	})
	t.Logf("keys that are well: %s; keys whose head failed %d times: %s", s.delays("e.key like 'well%'"), fails, s.delays("e.key like 'fail%'"))

	// 2. While a letter holds its key, what comes later is held as well.
	for k := range keys {
		s.publish(s.next(fmt.Sprint(kinds[k%3], k), ""))
	}
	s.Await("later events are held or handled", func() bool {
		return s.Count("select count(*) from holdfast.stored") == dead*(each-2) && s.Count("select count(*) from holdfast.inbox") == int64(keys*(each+1))
	})
	if n := s.Count("select count(*) from effect e join written w using (id) where e.key like 'die%' and w.number > 2"); n != 0 {
		t.Errorf("%d events passed the letter that holds their key", n)
	}

	// 3. Half of them are replayed, half are discarded: both let the key go on.
	fixed.Store(true)
	d := s.letters()
	letters := s.openLetters(d)
	for i, l := range letters {
		if l.Attempts != fails+1 || !l.Holds {
			t.Errorf("the letter is %+v", l)
		}
		if i%2 == 0 {
			if n, err := d.Replay(t.Context(), dlq.Filter{IDs: []int64{l.ID}}, dlq.ReplayOptions{By: "the test"}); err != nil || n != 1 {
				t.Fatalf("replayed %d, %v", n, err)
			}
		} else if err := d.Discard(t.Context(), l.ID, "the test", "it is not needed"); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	s.Await("the keys go on", func() bool {
		return s.Count("select count(*) from effect") == keys*(each+1)-dead/2 && s.Count("select count(*) from holdfast.stored") == 0
	})
	took := time.Since(begun)
	for _, stop := range stops {
		stop()
	}
	v := s.Judge("billing")
	t.Logf("%d letters: %d held events were handled %v after half were replayed and half discarded; %s", len(letters), dead*(each-2), took.Round(time.Millisecond), v)
	if n := v.Count(oracle.Missing); n != dead/2 {
		t.Errorf("%d events have no effect, want the %d that were discarded", n, dead/2)
	}
	v.Except(oracle.Missing).MustHold(t)
	runs.Range(func(id, n any) bool {
		// 1, or with failures fails+1, and one more if it was replayed. A group in which another event failed is one more.
		if got := n.(*atomic.Int64).Load(); got < 1 || got > 2 && got < fails+1 || got > fails+3 {
			t.Errorf("event %v ran %d times", id, got)
		}
		return true
	})
}
