package relay_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

func TestPark_ARefusedRecordHoldsBackItsOwnKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(refusing(publish.FaultRecord, "bad"))
	write(t, pool, event("k", "before"), event("k", "bad"), event("k", "after"), event("other", "1"), event("", "no key"))
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, "before", "1", "no key")
	write(t, pool, event("k", "later"), event("other", "2"))
	arrives(t, b, "2")
	wait.Until(t, "three events of the key are parked", func() bool { return parked(t, pool) == 3 })
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked where next_at < 'infinity'"); n != 1 {
		t.Errorf("%d parked rows have a time at which they are due, want the head alone", n)
	}
	wantFirsts(t, b, "k", "before")
	b.set(nil)
	arrives(t, b, "later")
	wantFirsts(t, b, "k", "before", "bad", "after", "later")
	wantFirsts(t, b, "other", "1", "2")
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	wantOnce(t, b)
	if n := letters(t, pool); n != 0 {
		t.Errorf("%d letters were written for a record that was fixed", n)
	}
}

func TestPark_AnEventWithoutAKeyIsParkedAlone(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(refusing(publish.FaultRecord, "bad 1", "bad 2"))
	write(t, pool, event("", "bad 1"), event("", "good 1"), event("", "bad 2"), event("", "good 2"))
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, "good 1", "good 2")
	wait.Until(t, "both are parked, each due by itself", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.parked where next_at < 'infinity'") == 2
	})
	b.set(refusing(publish.FaultRecord, "bad 1"))
	arrives(t, b, "bad 2") // although one parked before it still fails
}

func TestPark_TheLastAttemptMakesALetterWithEveryErrorAndTheKeyGoesOn(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var tries atomic.Int32
	b.set(func(e holdfast.Event) error {
		if string(e.Payload) != "bad" {
			return nil
		}
		return &publish.Error{Topic: "orders", Partition: 0, Fault: publish.FaultRecord, Err: fmt.Errorf("try %d", tries.Add(1))}
	})
	write(t, pool, event("k", "1"), event("k", "bad"), event("k", "2"))
	run(t, pool, b, relay.Config{Retry: swift})
	arrives(t, b, "2")
	wantFirsts(t, b, "k", "1", "2")
	var attempts int
	var chain []string
	var state, reason string
	if err := pool.QueryRow(t.Context(), "select attempts, errors, state, reason from holdfast.letter").Scan(&attempts, &chain, &state, &reason); err != nil {
		t.Fatal(err)
	}
	if attempts != 3 || tries.Load() != 3 || state != "open" || !strings.Contains(reason, "try 3") {
		t.Errorf("the letter says %d attempts, %q, %q; the broker saw %d: want 3, open, the last error", attempts, state, reason, tries.Load())
	}
	if got := strings.Join(chain, " | "); len(chain) != 3 || !strings.Contains(got, "try 1 |") || !strings.Contains(got, "try 2 |") || !strings.HasSuffix(got, "try 3") {
		t.Errorf("the letter's errors are %q, want the three in order", chain)
	}
}

func TestPark_APermanentRefusalIsALetterAfterOneLookFromTheTable(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(func(e holdfast.Event) error {
		if string(e.Payload) == "bad" {
			return retry.Permanent(errors.New("never"))
		}
		return nil
	})
	write(t, pool, event("k", "bad"), event("k", "2"))
	run(t, pool, b, relay.Config{Retry: retry.Policy{Attempts: 100, Base: time.Hour, Cap: time.Hour}})
	arrives(t, b, "2")
	if n := letters(t, pool); n != 1 {
		t.Errorf("%d letters, want 1", n)
	}
}

func TestPark_ChainsOfErrorsStayWithinTwenty(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	var tries atomic.Int32
	b.set(func(holdfast.Event) error {
		return &publish.Error{Topic: "orders", Fault: publish.FaultRecord, Err: fmt.Errorf("try %d", tries.Add(1))}
	})
	write(t, pool, event("k", "bad"))
	many := retry.Policy{Attempts: 30, Base: time.Millisecond, Cap: time.Millisecond}
	run(t, pool, b, relay.Config{Retry: many})
	wait.Until(t, "a letter is written", func() bool { return letters(t, pool) == 1 })
	if n := pgtest.Count(t, pool, "select cardinality(errors) from holdfast.letter"); n != 20 {
		t.Errorf("%d errors are kept of 30, want the last 20", n)
	}
	replay(t, pool, pgtest.Count(t, pool, "select id from holdfast.letter"))
	wait.Until(t, "the replay is given up", func() bool {
		return pgtest.Count(t, pool, "select count(*) from holdfast.letter where state = 'open' and attempts = 60") == 1
	})
	if n := pgtest.Count(t, pool, "select cardinality(errors) from holdfast.letter where errors[20] like '%try 60'"); n != 20 {
		t.Errorf("after a replay %d errors are kept, want 20 that end with the last", n)
	}
}

func TestPark_ParkedEventsSurviveARestartOfTheRelay(t *testing.T) {
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	b.set(refusing(publish.FaultRecord, "bad"))
	write(t, pool, event("k", "bad"), event("k", "2"))
	stop := run(t, pool, b, relay.Config{Retry: untiring})
	wait.Until(t, "both are parked", func() bool { return parked(t, pool) == 2 })
	stop()
	write(t, pool, event("k", "3"))
	run(t, pool, b, relay.Config{Retry: untiring})
	wait.Until(t, "the follower of before the restart is parked too", func() bool { return parked(t, pool) == 3 })
	b.set(nil)
	arrives(t, b, "3")
	wantFirsts(t, b, "k", "bad", "2", "3")
	wantOnce(t, b)
}

func TestPark_AnOutageOfTheBrokerSpendsNoAttemptsAndWritesNothing(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	// The outage begins when the head has been refused, however long it takes until it is parked: it has no second attempt before.
	var refused atomic.Bool
	b.set(func(e holdfast.Event) error {
		if string(e.Payload) == "bad" && refused.CompareAndSwap(false, true) {
			return refusal(publish.FaultRecord)
		}
		return refusal(publish.FaultBroker)
	})
	write(t, pool, event("k", "bad"), event("k", "2"))
	held := make(chan struct{}, 100)
	run(t, pool, b, relay.Config{Retry: retry.Policy{Attempts: 50, Base: 20 * time.Millisecond, Cap: 20 * time.Millisecond}, Observer: relay.Observer{
		OnHeld: func(h relay.Held) {
			if h.Fault == publish.FaultBroker {
				held <- struct{}{}
			}
		}}})
	wait.Until(t, "the head is parked", func() bool { return parked(t, pool) == 2 })
	// Two tries of parked events and one of the log, at least, meet the outage.
	calls := func() int { b.mu.Lock(); defer b.mu.Unlock(); return b.calls }
	from := calls()
	wait.Until(t, "the broker is asked", func() bool { return calls() >= from+2 })
	const state = "select sum(attempts + cardinality(errors)) + sum(xmin::text::bigint) from holdfast.parked"
	before := pgtest.Count(t, pool, state)
	from = calls()
	wait.Until(t, "the broker is asked again", func() bool { return calls() >= from+2 })
	if after := pgtest.Count(t, pool, state); after != before {
		t.Errorf("parked rows were written during an outage")
	}
	write(t, pool, event("other", "1"))
	for range 3 {
		<-held
	}
	if n := parked(t, pool); n != 2 {
		t.Errorf("%d events are parked after an outage, want the 2 of before", n)
	}
	b.set(nil)
	arrives(t, b, "2", "1")
	wantFirsts(t, b, "k", "bad", "2")
	if n := letters(t, pool); n != 0 {
		t.Errorf("an outage made %d letters", n)
	}
}

// However many events of a topic are parked: other topics flow.
func TestPark_OtherTopicsFlowBesideAnyNumberOfParkedEvents(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	pool, b := setup(t, 1), newBroker()
	b.set(func(e holdfast.Event) error {
		if e.Topic == "missing" {
			return refusal(publish.FaultTopic)
		}
		return nil
	})
	const many = 25_000
	for n := 0; n < many; {
		events := make([]holdfast.Event, 0, 5000)
		for range 5000 {
			n++
			events = append(events, holdfast.Event{Topic: "missing", Key: fmt.Sprint(n % 20_000), Type: "t"})
		}
		write(t, pool, append(events, event("k", fmt.Sprint("beside ", n)))...)
	}
	run(t, pool, b, relay.Config{Retry: untiring})
	arrives(t, b, "beside 5000", "beside 10000", "beside 15000", "beside 20000", "beside 25000")
	wait.Until(t, "the events of the topic are parked", func() bool { return parked(t, pool) == many })
	write(t, pool, event("k", "after them"))
	arrives(t, b, "after them")
	b.set(nil)
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	wantOnce(t, b)
	seen := map[string]int{}
	for _, e := range b.events() {
		seen[e.Topic]++
	}
	if seen["missing"] != many {
		t.Errorf("%d events of the topic arrived, want %d", seen["missing"], many)
	}
}
