package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// shortly is for waits that are to end in vain.
const shortly = 300 * time.Millisecond

func wantIdle(t *testing.T, pool *pgxpool.Pool, c holdfasttest.Idle) {
	t.Helper()
	if err := holdfasttest.WaitIdle(t.Context(), pool, c); err != nil {
		t.Fatal(err)
	}
}

// wantBusy waits in vain, and wants the error to say all of want. What runs beside the test may have to come that far
// first, and a slow machine may not get an answer in so short a time: it waits in vain again for up to half a minute.
func wantBusy(t *testing.T, pool *pgxpool.Pool, c holdfasttest.Idle, want ...string) {
	t.Helper()
	c.Within = shortly
	want = append(want, "still pending:")
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := holdfasttest.WaitIdle(t.Context(), pool, c)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the deadline exceeded and %q", err, want)
		}
		unsaid := slices.DeleteFunc(slices.Clone(want), func(w string) bool { return strings.Contains(err.Error(), w) })
		if len(unsaid) == 0 {
			t.Log(err)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the error does not say %q: %v", unsaid, err)
			return
		}
	}
}

func commit(t *testing.T, pool *pgxpool.Pool, events ...holdfast.Event) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, events...) }); err != nil {
		t.Fatal(err)
	}
}

// publisher counts, and refuses or waits as it is told.
type publisher struct {
	mu        sync.Mutex
	published int
	refuse    func(e holdfast.Event) error
}

func (p *publisher) Publish(_ context.Context, events []holdfast.Event) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(events))
	behind := map[string]error{} // what was refused keeps its key's later events back
	for i, e := range events {
		if errs[i] = behind[e.Key]; errs[i] == nil && p.refuse != nil {
			errs[i] = p.refuse(e)
		}
		behind[e.Key] = errs[i]
		if errs[i] == nil {
			p.published++
		}
	}
	return errs
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published
}

func (p *publisher) accept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
}

func refused(e holdfast.Event) error {
	return &publish.Error{Topic: e.Topic, Partition: -1, Fault: publish.FaultRecord, Err: errors.New("too large for this broker")}
}

// background runs f until the test ends.
func background(t *testing.T, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func runRelay(t *testing.T, pool *pgxpool.Pool, p relay.Publisher, c relay.Config) {
	t.Helper()
	c.Logger, c.Lease = slog.New(slog.DiscardHandler), 2*time.Minute // A lane that is lost is published again, which tests would count.
	r, err := relay.New(pool, p, c)
	if err != nil {
		t.Fatal(err)
	}
	background(t, r.Run)
}

func TestIdle_WaitIdleWaitsUntilTheRelayHasPublishedEverything(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	pool := setup(t)
	wantIdle(t, pool, holdfasttest.Idle{})

	var all []holdfast.Event
	for i := range 50 {
		all = append(all, holdfast.Event{Type: "t", Topic: "orders", Key: fmt.Sprint(i)})
	}
	commit(t, pool, all...)
	wantBusy(t, pool, holdfasttest.Idle{}, "lane 0: ", "lane 7: ", " unread in the log, such as orders; no relay has the lane")

	// Events that nobody has committed are no business of a relay.
	open := holdfasttest.Begin(t, pool)
	write(t, open, named("open"))
	p := &publisher{}
	runRelay(t, pool, p, relay.Config{})
	wantIdle(t, pool, holdfasttest.Idle{})
	if p.count() != 50 {
		t.Errorf("%d events were published when it was idle, want 50", p.count())
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantIdle(t, pool, holdfasttest.Idle{})
	if p.count() != 51 {
		t.Errorf("%d events were published when it was idle again, want 51", p.count())
	}
}

func TestIdle_WhatTheRelayHasReadAndNotPublishedIsPending(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	release, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := &publisher{refuse: func(holdfast.Event) error {
		once.Do(func() { close(entered) })
		<-release
		return nil
	}}
	runRelay(t, pool, p, relay.Config{})
	commit(t, pool, named("1"), named("2"), named("3"))
	<-entered
	wantBusy(t, pool, holdfasttest.Idle{Ahead: -1}, "3 unread in the log, such as o")
	close(release)
	wantIdle(t, pool, holdfasttest.Idle{})
}

func TestIdle_HalfAWindowThatIsPublishedIsNotCountedAgain(t *testing.T) {
	pool := setup(t)
	commit(t, pool, named("1"), named("2"), named("3"))
	pgtest.Exec(t, pool, `update holdfast.lane l set upto = pg_current_snapshot(), pos = (select min(seq) + 1 from holdfast.event)
		where l.lane = (select min(lane) from holdfast.event)`)
	wantBusy(t, pool, holdfasttest.Idle{}, ": 1 unread in the log")
}

func TestIdle_WhatIsParkedIsPendingUntilItIsPublishedOrGivenUp(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	p := &publisher{refuse: refused}
	runRelay(t, pool, p, relay.Config{Retry: retry.Policy{Attempts: 1000, Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond}})
	commit(t, pool, named("1"), named("2"))
	// The retries come between the looks: one that is to come counts as well as one that is due.
	wantBusy(t, pool, holdfasttest.Idle{}, "1 parked (heads of their keys), such as o; due ", "too large for this broker")
	p.accept()
	wantIdle(t, pool, holdfasttest.Idle{})
	if p.count() != 2 {
		t.Errorf("%d events were published when it was idle, want 2", p.count())
	}
}

func TestIdle_ARetryThatIsFarAwayIsPendingOnlyWhereAheadReachesIt(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	commit(t, pool, named("1"))
	pgtest.Exec(t, pool, `update holdfast.lane set done = pg_current_snapshot()`) // as if it had been read
	pgtest.Exec(t, pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		values (3, 'o', 'k', 1, 'record', now() + interval '10 minutes 30 seconds', '1', '', 't', now())`)
	pgtest.Exec(t, pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'o', 'k', 1, '', '1', 't', now(), '', now() + interval '10 minutes 30 seconds')`)
	wantIdle(t, pool, holdfasttest.Idle{})
	wantBusy(t, pool, holdfasttest.Idle{Ahead: time.Hour}, "lane 3: 1 parked", "due in 10m", "consumer billing: 1 stored (heads of their keys), such as t; due in 10m")
	pgtest.Exec(t, pool, "update holdfast.parked set next_at = now() + interval '50 seconds'")
	pgtest.Exec(t, pool, "delete from holdfast.stored")
	wantBusy(t, pool, holdfasttest.Idle{}, "lane 3: 1 parked", "; due in ")
	wantIdle(t, pool, holdfasttest.Idle{Ahead: -1})
	wantIdle(t, pool, holdfasttest.Idle{NoRelay: true})
	commit(t, pool, later("in an hour"))
	wantIdle(t, pool, holdfasttest.Idle{NoRelay: true, Ahead: 2 * time.Hour})
}

func TestIdle_WhatALetterHoldsIsAtRest(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	pool := setup(t)
	p := &publisher{refuse: func(e holdfast.Event) error {
		if e.ID == "1" {
			return refused(e)
		}
		return nil
	}}
	runRelay(t, pool, p, relay.Config{Retry: retry.Policy{Attempts: 1}, HoldKey: true})
	commit(t, pool, named("1"), named("2"))
	wantIdle(t, pool, holdfasttest.Idle{})
	if n := pgtest.Count(t, pool, "select count(*) from holdfast.parked where id = '2'"); n != 1 {
		t.Fatalf("%d events wait behind the letter, want 1", n)
	}

	in := newBilling(t, pool, func(c *inbox.Config) { c.HoldKey = true })
	background(t, in.Run)
	receive(t, in, "a", placed("k", "no JSON"), inbox.Dead)
	receive(t, in, "b", placed("k", "{}"), inbox.Stored)
	wantIdle(t, pool, holdfasttest.Idle{})
	pgtest.Exec(t, pool, "update holdfast.letter set state = 'discarded'")
	pgtest.Exec(t, pool, "delete from holdfast.parked") // that the relay wakes is its own tests' business
	wantIdle(t, pool, holdfasttest.Idle{})
	if n := pgtest.Count(t, pool, "select count(*) from invoices"); n != 1 {
		t.Errorf("idle without the event behind the letter that was discarded: %d invoices, want 1", n)
	}
}

func TestIdle_WhatComesBeforeAHoldingLetterIsPending(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	pgtest.Exec(t, pool, `insert into holdfast.letter (origin, consumer, reason, holds, event_id, source, type, topic, key, time, hash, place)
		values ('inbox', 'billing', 'r', true, 'late', 's', 't', 'orders', 'k', now(), '', 5)`)
	pgtest.Exec(t, pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', 'k', 6, 's', 'held', 't', now(), '', now())`)
	wantIdle(t, pool, holdfasttest.Idle{NoRelay: true})
	pgtest.Exec(t, pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', 'k', 4, 's', 'early', 't', now(), '', now() + interval '2 seconds')`)
	wantBusy(t, pool, holdfasttest.Idle{NoRelay: true}, "consumer billing: 1 stored")
}

func receive(t *testing.T, in *inbox.Inbox, id string, e holdfast.Event, want inbox.Outcome) {
	t.Helper()
	e.ID = id
	if got, err := in.Receive(t.Context(), e); got != want || err != nil {
		t.Fatalf("event %s: got %q, %v, want %q", id, got, err, want)
	}
}

func TestIdle_WhatIsScheduledIsPendingOnceItIsDueSoon(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	p := &publisher{}
	runRelay(t, pool, p, relay.Config{})
	soon := named("soon")
	soon.NotBefore = time.Now().Add(500 * time.Millisecond)
	commit(t, pool, later("in an hour"), soon)
	wantIdle(t, pool, holdfasttest.Idle{})
	if p.count() != 1 {
		t.Errorf("%d events were published when it was idle, want the one that was due soon", p.count())
	}
	wantBusy(t, pool, holdfasttest.Idle{Ahead: 2 * time.Hour}, ": 1 scheduled, such as o; due in 59m")
}

func TestIdle_WhatIsStoredIsPendingForTheConsumersThatAreAskedFor(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	pool := setup(t)
	in := newBilling(t, pool)
	e := placed("k", "{}")
	e.ID = "1"
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := in.StoreTx(t.Context(), tx, e)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantBusy(t, pool, holdfasttest.Idle{}, "consumer billing: 1 stored (heads of their keys), such as order.placed; due now")
	wantBusy(t, pool, holdfasttest.Idle{Consumers: []string{"shipping", "billing"}}, "consumer billing: 1 stored")
	wantIdle(t, pool, holdfasttest.Idle{Consumers: []string{"shipping"}})
	background(t, in.Run)
	wantIdle(t, pool, holdfasttest.Idle{NoRelay: true})
	wantBusy(t, pool, holdfasttest.Idle{}, "1 unread in the log, such as invoices")
	runRelay(t, pool, &publisher{}, relay.Config{}) // the handler writes an event
	wantIdle(t, pool, holdfasttest.Idle{})
	if n := pgtest.Count(t, pool, "select count(*) from invoices"); n != 1 {
		t.Errorf("%d invoices when it was idle, want 1", n)
	}
}

func TestIdle_RetriesAndHandlersInHandArePendingWithTheLastError(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	pool := setup(t)
	var fixed, stuck atomic.Bool
	release, entered := make(chan struct{}), make(chan struct{})
	in := newBilling(t, pool, func(c *inbox.Config) {
		c.Retry = retry.Policy{Attempts: 1000, Base: 50 * time.Millisecond, Cap: 50 * time.Millisecond}
	})
	in.Handle("flaky", func(context.Context, pgx.Tx, holdfast.Event) error {
		if !fixed.Load() {
			panic("the rate is missing\nreally")
		}
		if stuck.CompareAndSwap(false, true) {
			close(entered)
			<-release
		}
		return nil
	})
	background(t, in.Run)
	receive(t, in, "1", holdfast.Event{Type: "flaky", Topic: "o", Key: "k"}, inbox.Retrying)
	wantBusy(t, pool, holdfasttest.Idle{}, "consumer billing: 1 stored", "; panic: the rate is missing")
	fixed.Store(true)
	<-entered
	wantBusy(t, pool, holdfasttest.Idle{Ahead: -1}, "consumer billing: 1 stored")
	close(release)
	wantIdle(t, pool, holdfasttest.Idle{})
}

func TestIdle_EventsInKafkaArePendingUntilEachConsumerHasThem(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	pool := setup(t)
	runRelay(t, pool, &publisher{}, relay.Config{})
	one, two, unknown := placed("k", "{}"), placed("k", "no JSON"), named("3")
	one.ID, two.ID, unknown.Topic = "1", "2", "orders"
	commit(t, pool, one, two, unknown, holdfast.Event{Type: "t", Topic: "elsewhere"})
	wantIdle(t, pool, holdfasttest.Idle{})
	idle := holdfasttest.Idle{Consumers: []string{"billing", "shipping"}, Topics: []string{"orders"}}
	wantBusy(t, pool, idle, "consumer billing: 3 not taken in, such as order.placed", "consumer shipping: 3 not taken in")

	billing := newBilling(t, pool)
	receive(t, billing, "1", one, inbox.Handled)
	wantBusy(t, pool, idle, "consumer billing: 2 not taken in")
	receive(t, billing, "2", two, inbox.Dead)
	wantBusy(t, pool, idle, "consumer billing: 1 not taken in, such as t")
	background(t, billing.Run) // declares what it handles, and the type of event 3 is not among it
	wantIdle(t, pool, holdfasttest.Idle{Consumers: []string{"billing"}, Topics: []string{"orders"}})
	wantBusy(t, pool, idle, "consumer shipping: 3 not taken in")
}

func TestIdle_WaitIdleSaysWhyItCannotWait(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	pool := setup(t)
	for name, c := range map[string]struct {
		idle holdfasttest.Idle
		want string
	}{
		"a bad schema":             {holdfasttest.Idle{Schema: "No;"}, `schema is "No;"`},
		"topics without consumers": {holdfasttest.Idle{Topics: []string{"orders"}}, `consumers is empty: it must name the consumers that read topics ["orders"]`},
		"no schema in there":       {holdfasttest.Idle{Schema: "absent"}, "42P01"},
	} {
		if err := holdfasttest.WaitIdle(t.Context(), pool, c.idle); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := holdfasttest.WaitIdle(ctx, pool, holdfasttest.Idle{}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "before the database answered") {
		t.Errorf("with a context that has ended: %v", err)
	}
	commit(t, pool, named("1"))
	for end := time.Now().Add(30 * time.Second); ; { // the first answer may take longer
		ctx, cancel = context.WithTimeout(t.Context(), shortly)
		err := holdfasttest.WaitIdle(ctx, pool, holdfasttest.Idle{Within: -1})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "1 unread") {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			t.Fatalf("without a limit of its own: %v", err)
		}
	}
}
