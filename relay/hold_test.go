package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// forGood refuses for good what has one of the payloads.
func forGood(payloads ...string) func(holdfast.Event) error {
	return func(e holdfast.Event) error {
		for _, p := range payloads {
			if string(e.Payload) == p {
				return retry.Permanent(errors.New("never"))
			}
		}
		return nil
	}
}

func TestHold_AHeldKeyWaitsUntilItsLetterIsDecided(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		decide func(t *testing.T, e *heldKey)
		want   []string
	}{
		{"discarded", func(t *testing.T, e *heldKey) { e.discard(t) }, []string{"1", "3", "4"}},
		{"replayed and taken", func(t *testing.T, e *heldKey) { e.b.set(nil); replay(t, e.db, e.letter) }, []string{"1", "bad", "3", "4"}},
		{"replayed, given up again, discarded", func(t *testing.T, e *heldKey) {
			replay(t, e.db, e.letter)
			wait.Until(t, "the letter is open again", func() bool {
				return pgtest.Count(t, e.db, "select count(*) from holdfast.letter where state = 'open' and holds and cardinality(errors) > 2") == 1
			})
			if n := letters(t, e.db); n != 1 {
				t.Errorf("a replay that failed made another letter: there are %d", n)
			}
			e.stillHeld(t)
			e.discard(t)
		}, []string{"1", "3", "4"}},
		{"discarded while no relay runs", func(t *testing.T, e *heldKey) { e.stop(); e.discard(t); e.start(t) }, []string{"1", "3", "4"}},
		{"replayed while no relay runs", func(t *testing.T, e *heldKey) {
			e.stop()
			e.b.set(nil)
			replay(t, e.db, e.letter)
			e.start(t)
		}, []string{"1", "bad", "3", "4"}},
		{"discarded after a restart", func(t *testing.T, e *heldKey) { e.stop(); e.start(t); e.stillHeld(t); e.discard(t) }, []string{"1", "3", "4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := &heldKey{b: newBroker()}
			e.db = setup(t, 1)
			e.b.set(forGood("bad"))
			write(t, e.db, event("k", "1"), event("k", "bad"), event("k", "3"), event("free", "a"))
			e.start(t)
			wait.Until(t, "a letter is written", func() bool { return letters(t, e.db) == 1 })
			e.letter = pgtest.Count(t, e.db, "select id from holdfast.letter where holds")
			write(t, e.db, event("k", "4"), event("free", "b"))
			arrives(t, e.b, "b")
			e.stillHeld(t)
			c.decide(t, e)
			arrives(t, e.b, "4")
			wantFirsts(t, e.b, "k", c.want...)
			wantOnce(t, e.b)
			wait.Until(t, "nothing is parked", func() bool { return parked(t, e.db) == 0 })
		})
	}
}

// A key is held after an event was given up, also when an event before it in the same round was taken.
func TestHold_AKeyIsHeldAlthoughTheEventBeforeTheLetterWasTaken(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var open atomic.Bool
	b.set(func(e holdfast.Event) error {
		switch {
		case !open.Load():
			return refusal(publish.FaultRecord)
		case string(e.Payload) == "bad":
			return retry.Permanent(errors.New("never"))
		}
		return nil
	})
	write(t, pool, event("k", "1"), event("k", "bad"), event("k", "3"))
	run(t, pool, b, relay.Config{Retry: untiring, HoldKey: true})
	wait.Until(t, "all three are parked", func() bool { return parked(t, pool) == 3 })
	open.Store(true)
	wait.Until(t, "a letter is written", func() bool { return letters(t, pool) == 1 })
	write(t, pool, event("free", "a"))
	arrives(t, b, "a")
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked where next_at < 'infinity'"); n != 0 {
		t.Error("the event that the letter holds was resumed")
	}
	wantFirsts(t, b, "k", "1")
}

func TestHold_ATopicThatComesBackDoesNotResumeAKeyThatALetterHolds(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(forGood("bad"))
	write(t, pool, event("k", "bad"), event("k", "held"))
	run(t, pool, b, relay.Config{HoldKey: true})
	wait.Until(t, "a letter is written", func() bool { return letters(t, pool) == 1 })
	b.set(func(e holdfast.Event) error { return refusal(publish.FaultTopic) })
	write(t, pool, event("other", "1"))
	wait.Until(t, "the topic is held", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.parked where why = 'topic'") == 1
	})
	b.set(nil)
	arrives(t, b, "1")
	wait.Until(t, "only the held key is parked", func() bool { return parked(t, pool) == 1 })
	if b.has("held") || pgtest.Count(t, pool, "select count(*) from holdfast.parked where next_at < 'infinity'") != 0 {
		t.Error("the key went on, although its letter is open")
	}
}

func TestHold_ReplaysEnterTheirQueueAtTheHeadInTheirOwnOrder(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(forGood("bad 1", "bad 2"))
	write(t, pool, event("k", "bad 1"), event("k", "bad 2"))
	stop := run(t, pool, b, relay.Config{})
	wait.Until(t, "both are given up", func() bool { return letters(t, pool) == 2 })
	b.set(refusing(publish.FaultRecord, "3"))
	write(t, pool, event("k", "3"), event("k", "4"))
	wait.Until(t, "the key waits", func() bool { return parked(t, pool) == 2 })
	stop()
	first, second := pgtest.Count(t, pool, "select min(id) from holdfast.letter"), pgtest.Count(t, pool, "select max(id) from holdfast.letter")
	replay(t, pool, first)
	replay(t, pool, second)
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, "bad 1", "bad 2")
	b.set(nil)
	arrives(t, b, "4")
	wantFirsts(t, b, "k", "bad 1", "bad 2", "3", "4")
	wantOnce(t, b)
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.letter where state = 'replayed'"); n != 2 {
		t.Errorf("%d letters say that they were replayed, want 2", n)
	}
}

func TestHold_ReplaysThatArriveInPagesOfTheirOwnKeepTheirOrderToo(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(forGood("bad 1", "bad 2"))
	write(t, pool, event("k", "bad 1"), event("k", "bad 2"))
	stop := run(t, pool, b, relay.Config{})
	wait.Until(t, "both are given up", func() bool { return letters(t, pool) == 2 })
	stop()
	b.set(refusing(publish.FaultRecord, "bad 1", "bad 2", "3"))
	write(t, pool, event("k", "3"), event("k", "4"))
	replay(t, pool, pgtest.Count(t, pool, "select min(id) from holdfast.letter"))
	replay(t, pool, pgtest.Count(t, pool, "select max(id) from holdfast.letter"))
	run(t, pool, b, relay.Config{BatchSize: 1, Retry: untiring})
	wait.Until(t, "all four wait", func() bool { return parked(t, pool) == 4 })
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked where next_at < 'infinity'"); n != 1 {
		t.Errorf("%d rows of one queue have a time of their own, want the head alone", n)
	}
	b.set(nil)
	arrives(t, b, "4")
	wantFirsts(t, b, "k", "bad 1", "bad 2", "3", "4")
	wantOnce(t, b)
}

// inCall is a broker to which something happens while it has one call in progress.
type inCall struct {
	*broker
	meanwhile func(e holdfast.Event) // of the event of a call, before it is answered
}

func (i inCall) Publish(ctx context.Context, events []holdfast.Event) []error {
	for _, e := range events {
		i.meanwhile(e)
	}
	return i.broker.Publish(ctx, events)
}

// The head of a queue is refused when a replay has already entered the queue before it.
func TestHold_AHeadThatAReplayPassesInItsCallWaitsForIt(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(forGood("bad"))
	write(t, pool, event("k", "bad"))
	stop := run(t, pool, b, relay.Config{})
	wait.Until(t, "it is given up", func() bool { return letters(t, pool) == 1 })
	stop()
	var tries [2]atomic.Int32 // of the replayed event, of the other
	var passed atomic.Bool
	b.set(func(e holdfast.Event) error {
		switch string(e.Payload) {
		case "bad":
			if tries[0].Add(1) <= 2 {
				return retry.After(refusal(publish.FaultRecord), 300*time.Millisecond) // longer than the other one's delays
			}
		case "2":
			if tries[1].Add(1) <= 2 {
				return refusal(publish.FaultRecord)
			}
		}
		return nil
	})
	write(t, pool, event("k", "2"))
	var once sync.Once
	run(t, pool, inCall{b, func(e holdfast.Event) {
		if string(e.Payload) == "2" && tries[1].Load() == 1 { // its second try: it is parked, and the head
			once.Do(func() {
				replay(t, pool, pgtest.Count(t, pool, "select min(id) from holdfast.letter"))
				wait.Until(t, "the replay is parked before it", func() bool {
					return pgtest.Count(t, pool, "select count(*) from holdfast.parked where letter is not null") == 1
				})
				passed.Store(true)
			})
		}
	}}, relay.Config{Retry: untiring})
	arrives(t, b, "bad", "2")
	if !passed.Load() {
		t.Error("the replay did not pass the head while it was tried: nothing is shown")
	}
	wantFirsts(t, b, "k", "bad", "2")
	wantOnce(t, b)
}

func TestHold_AMissingTopicIsHeldByItselfAndThenComesInOrder(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var probes atomic.Int32
	tried := &triedOnly{broker: b, topic: "missing"}
	b.set(func(e holdfast.Event) error {
		if e.Topic == "missing" {
			probes.Add(1)
			return refusal(publish.FaultTopic)
		}
		return nil
	})
	in := func(key string, n int) holdfast.Event {
		return holdfast.Event{Topic: "missing", Key: key, Type: "t", Payload: fmt.Appendf(nil, "%s%d", key, n)}
	}
	stop := run(t, pool, tried, relay.Config{Retry: retry.Policy{Attempts: 1}})
	for n := range 5 {
		write(t, pool, in("a", n), in("b", n), in("", n), event("a", fmt.Sprintf("there %d", n)))
		arrives(t, b, fmt.Sprintf("there %d", n))
	}
	wait.Until(t, "the topic's events are parked", func() bool { return parked(t, pool) == 15 })
	if n := pgtest.Count(t, pool, "select coalesce(sum(attempts), 0) from holdfast.parked"); n != 0 {
		t.Errorf("%d attempts were spent on a missing topic", n)
	}
	stop()
	stop = run(t, pool, tried, relay.Config{Retry: retry.Policy{Attempts: 1}})
	from := probes.Load()
	wait.Until(t, "the topic is tried after a restart", func() bool { return probes.Load() > from })
	write(t, pool, in("a", 5), in("c", 0), event("a", "there 5"))
	arrives(t, b, "there 5")
	wait.Until(t, "new events of the topic wait too", func() bool { return parked(t, pool) == 17 })
	if sizes := tried.sizes(); len(sizes) < 2 || slices.Max(sizes[1:]) > 1 {
		t.Errorf("the missing topic was tried with %v events: after the first page it is one of them", sizes)
	}
	b.set(nil)
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	stop()
	for key, n := range map[string]int{"a": 6, "b": 5, "c": 1} {
		var want, got []string
		for i := range n {
			want = append(want, fmt.Sprintf("%s%d", key, i))
		}
		for _, e := range b.events() {
			if e.Topic == "missing" && e.Key == key {
				got = append(got, string(e.Payload))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("key %s of the topic came as %q, want %q", key, got, want)
		}
	}
	wantOnce(t, b)
	if n := letters(t, pool); n != 0 {
		t.Errorf("a missing topic made %d letters", n)
	}
}

// The oldest events of a topic that comes back may be those of a partition that is down: an event is tried about once a second, and each of
// them says no more than the first, that the topic is there.
func TestHold_ATopicIsBackThoughThePartitionOfItsOldestEventsIsDown(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(func(holdfast.Event) error { return refusal(publish.FaultTopic) })
	const oldest = 1000 // by one a second that is longer than any test may take
	for i := range oldest / 100 {
		var events []holdfast.Event
		for n := range 100 {
			events = append(events, holdfast.Event{Topic: "orders", Type: "down", Payload: fmt.Appendf(nil, "old %d %d", i, n)})
		}
		write(t, pool, events...)
	}
	write(t, pool, event("up", "1"))
	run(t, pool, b, relay.Config{Retry: retry.Policy{Attempts: 1}})
	wait.Until(t, "the topic's events are parked", func() bool { return parked(t, pool) == oldest+1 })
	b.set(func(e holdfast.Event) error {
		if e.Type == "down" {
			return refusal(publish.FaultPartition)
		}
		return nil
	})
	arrives(t, b, "1")
	write(t, pool, event("up", "2"))
	arrives(t, b, "2")
	wait.Until(t, "the partition's events wait for it", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.parked where partition = 1") == oldest
	})
	b.set(nil)
	wait.Until(t, "all arrive", func() bool { return parked(t, pool) == 0 })
	wantOnce(t, b)
}

func TestHold_AnUnavailablePartitionDelaysNoOtherAndIsParked(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	down := func(e holdfast.Event) error {
		if e.Key == "down" || e.Type == "down" {
			return refusal(publish.FaultPartition)
		}
		return nil
	}
	b.set(down)
	write(t, pool, event("down", "1"), event("up", "1st page"))
	const after = 600 * time.Millisecond
	var held atomic.Int32
	began := time.Now() // before it can have waited
	run(t, pool, b, relay.Config{ParkAfter: after, BatchSize: 2, Retry: retry.Policy{Attempts: 1}, Observer: relay.Observer{
		OnHeld: func(h relay.Held) {
			if h.Topic != "orders" || h.Partition != 1 {
				t.Errorf("topic %s, partition %d is held", h.Topic, h.Partition)
			}
			held.Add(1)
		},
		OnWaiting: func(p relay.Waiting) {
			if waited := time.Since(began); waited < after {
				t.Errorf("%q is parked after %v, want %v at least", p.Event.Payload, waited, after)
			}
		}}})
	arrives(t, b, "1st page")
	write(t, pool, event("down", "2"), event("up", "2nd page"))
	arrives(t, b, "2nd page")
	wait.Until(t, "the partition's events are parked", func() bool { return parked(t, pool) == 2 })
	if held.Load() == 0 {
		t.Error("nobody was told")
	}
	for i := range 8 {
		p := fmt.Sprintf("page %d", i+3)
		write(t, pool, holdfast.Event{Topic: "orders", Key: "", Type: "down", Payload: []byte(p + " down")}, event("up", p))
		arrives(t, b, p)
	}
	wait.Until(t, "the later ones are parked too", func() bool { return parked(t, pool) == 10 })
	if n := pgtest.Count(t, pool, "select coalesce(sum(attempts), 0) from holdfast.parked"); n != 0 {
		t.Errorf("%d attempts were spent on an unavailable partition", n)
	}
	b.set(nil)
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	for i, e := range b.events() {
		if string(e.Payload) == "2" && e.Key == "down" && !contains(b.payloads()[:i], "1") {
			t.Error("the second event of the key came before the first")
		}
	}
	wantOnce(t, b)
}

// Without an answer from anywhere it is the cluster that is away, and then nothing is parked.
func TestHold_AClusterThatIsAwayParksNothing(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var tries atomic.Int32
	b.set(func(holdfast.Event) error { tries.Add(1); return refusal(publish.FaultBroker) })
	write(t, pool, event("down", "1"), event("up", "1st page"))
	run(t, pool, b, relay.Config{ParkAfter: 300 * time.Millisecond, BatchSize: 2, Retry: retry.Policy{Attempts: 1}})
	wait.Until(t, "it is tried", func() bool { return tries.Load() > 0 })
	write(t, pool, event("up", "2nd page"))
	wait.Until(t, "it is tried for longer than a partition would be", func() bool { return tries.Load() > 8 })
	if parked(t, pool) > 0 {
		t.Error("events of a cluster that is away were parked")
	}
	b.set(nil)
	arrives(t, b, "1st page", "2nd page", "1")
	wantOnce(t, b)
	if n := letters(t, pool); n != 0 {
		t.Errorf("an absent cluster made %d letters", n)
	}
}

// triedOnly is a broker that notes how many events of a topic each call has.
type triedOnly struct {
	*broker
	topic string
	each  []int // guarded by the broker's mutex
}

func (to *triedOnly) Publish(ctx context.Context, events []holdfast.Event) []error {
	if events[0].Topic == to.topic {
		to.mu.Lock()
		to.each = append(to.each, len(events))
		to.mu.Unlock()
	}
	return to.broker.Publish(ctx, events)
}

func (to *triedOnly) sizes() []int {
	to.mu.Lock()
	defer to.mu.Unlock()
	return slices.Clone(to.each)
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// heldKey is a database with a key that a letter holds, and the relay that runs on it.
type heldKey struct {
	db     *pgxpool.Pool
	b      *broker
	letter int64
	stop   func()
}

func (h *heldKey) start(t *testing.T) {
	h.stop = run(t, h.db, h.b, relay.Config{HoldKey: true, Retry: swift})
}

func (h *heldKey) discard(t *testing.T) {
	pgtest.Exec(t, h.db, "update holdfast.letter set state = 'discarded' where id = $1", h.letter)
}

func (h *heldKey) stillHeld(t *testing.T) {
	t.Helper()
	wait.Until(t, "the key's later events are parked", func() bool { return parked(t, h.db) == 2 })
	wantFirsts(t, h.b, "k", "1")
}
