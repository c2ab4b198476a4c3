package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestOptions_AllWrongOptionsAreSaidAtOnceAtTheStart(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retention = time.Hour })
	in.Handle("a", effectOf, WithRetry(retry.Policy{Attempts: -2, Base: -time.Second}), WithTimeout(-time.Second))
	in.HandleBatch("b", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil }, WithTimeout(2*time.Hour), WithConcurrency(1001), WithGroup(2))
	in.Handle("c", effectOf, WithConcurrency(-2), WithGroup(1001), nil)
	in.Handle("d", effectOf, WithConcurrency(-1), WithTimeout(0), WithRetry(retry.Policy{}), WithHoldKey(true), WithGroup(0))
	in.Handle("e", effectOf, WithGroup(-1))
	in.Handle("f", effectOf, WithGroup(2), WithConcurrency(3))
	in.Handle("g", effectOf, WithGroup(1), WithConcurrency(3))
	in.Handle("h", effectOf, WithGroup(1000))
	want := strings.Join([]string{
		`inbox: configuration: type "a": retry attempts is -2: it must be 1 or more, 0 for the default, or -1 for no limit`,
		`retry base is -1s: it must be positive, or 0 for the default`,
		`type "a": timeout is -1s: it must be between 1ms and 24h: a handler without a limit would hold its key forever`,
		`type "b": retention is 1h0m0s: it must be longer than timeout and grace, 2h0m5s: a row's age counts from before its handler ran`,
		`type "b": concurrency is 1001: it must be between 1 and 1000, or 0 or -1 for no limit`,
		`type "b": group is 2: it must be 0 for HandleBatch and OnBatch: Config.BatchSize says how many events they take in one transaction`,
		`type "c": concurrency is -2: it must be between 1 and 1000, or 0 or -1 for no limit`,
		`type "c": group is 1001: it must be between 1 and 1000, or 0 for that of Config`,
		`type "e": group is -1: it must be between 1 and 1000, or 0 for that of Config`,
		`type "f": group is 2 and concurrency is 3: it must be one of them: handlers with a concurrency have transactions of their own`,
	}, "\n")
	for name, start := range map[string]func() error{
		"Receive": func() error { _, err := in.Receive(t.Context(), event("1", "k")); return err },
		"Store":   func() error { _, err := in.Store(t.Context(), event("1", "k")); return err },
		"Run":     func() error { return in.Run(t.Context()) },
		"Consume": func() error { return in.Consume(t.Context(), noSource{}) },
		"ReceiveTx": func() error {
			return pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error { _, err := in.ReceiveTx(t.Context(), tx, event("1", "k")); return err })
		},
		"StoreTx": func() error {
			return pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error { _, err := in.StoreTx(t.Context(), tx, event("1", "k")); return err })
		},
	} {
		if err := start(); !errors.Is(err, ErrConfiguration) || err.Error() != want {
			t.Errorf("%s returned\n%v\nwant\n%s", name, err, want)
		}
	}
	if n := b.count("select count(*) from holdfast.inbox"); n != 0 {
		t.Errorf("%d events were recorded", n)
	}
}

// noSource is a source that is never opened.
type noSource struct{ Source }

// typed is an event of a type.
func typed(id, key, eventType string) holdfast.Event {
	e := event(id, key)
	e.Type = eventType
	return e
}

// The ways by which an event comes to its handler.
var arrivals = map[string]func(b *bundle, in *Inbox, events ...holdfast.Event){
	"Receive": func(b *bundle, in *Inbox, events ...holdfast.Event) {
		b.run(in.Run)
		for _, e := range events {
			if _, err := in.Receive(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	},
	"TryReceive": func(b *bundle, in *Inbox, events ...holdfast.Event) {
		b.run(in.Run)
		for _, e := range events {
			if _, err := in.TryReceive(b.Context(), e); err != nil {
				b.Fatal(err)
			}
		}
	},
	"ReceiveTx": func(b *bundle, in *Inbox, events ...holdfast.Event) {
		b.run(in.Run)
		for _, e := range events {
			if err := pgx.BeginFunc(b.Context(), b.db, func(tx pgx.Tx) error { _, err := in.ReceiveTx(b.Context(), tx, e); return err }); err != nil {
				b.Fatal(err)
			}
		}
	},
	"Store": func(b *bundle, in *Inbox, events ...holdfast.Event) {
		b.run(in.Run)
		for _, e := range events {
			b.stores(in, e)
		}
	},
	"Consume": func(b *bundle, in *Inbox, events ...holdfast.Event) {
		b.consumeFake(in, newFakeGeneration(logOf(events...)))
	},
}

// awaitLetters waits for so many dead letters.
func (b *bundle) awaitLetters(n int64) {
	b.Helper()
	if !wait.For(wait.Limit(), func() bool { return b.count("select count(*) from holdfast.letter") == n }) {
		b.Fatalf("%d dead letters, want %d", b.count("select count(*) from holdfast.letter"), n)
	}
}

func (b *bundle) stores(in *Inbox, e holdfast.Event) {
	b.Helper()
	if got, err := in.Store(b.Context(), e); err != nil || got != Stored {
		b.Fatalf("Store(%s) = %q, %v", e.ID, got, err)
	}
}

func TestOptions_TheRetriesOfATypeGoBeforeThoseOfTheInbox(t *testing.T) {
	for name, arrive := range arrivals {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			fail := func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("no such customer") }
			in.Handle("once", fail, WithRetry(retry.Policy{Attempts: 1}))
			in.Handle("five", fail, WithRetry(retry.Policy{Attempts: 5}))
			in.Handle("three", fail, WithTimeout(time.Minute))
			in.HandleBatch("batch", func(context.Context, pgx.Tx, []holdfast.Event) error { return errors.New("no such customer") }, WithRetry(retry.Policy{Attempts: 4}))
			want := map[string]int{"once": 1, "five": 5, "three": 3, "batch": 4}
			var events []holdfast.Event
			for eventType := range want {
				events = append(events, typed(eventType, "key of "+eventType, eventType))
			}
			arrive(b, in, events...)
			b.awaitLetters(4)
			for eventType, attempts := range want {
				if n := b.count("select attempts from holdfast.letter where event_id = $1", eventType); n != int64(attempts) {
					t.Errorf("%s was given up after %d attempts, want %d", eventType, n, attempts)
				}
			}
		})
	}
}

func TestOptions_TheTimeoutOfATypeGoesBeforeThatOfTheInbox(t *testing.T) {
	for name, arrive := range arrivals {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.Timeout, c.Grace, c.Retry.Attempts = 300*time.Millisecond, time.Minute, 1 })
			in.Handle("long", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				var timeout string
				if err := tx.QueryRow(ctx, "select current_setting('lock_timeout')").Scan(&timeout); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, "select pg_sleep(0.6)"); err != nil {
					return err
				}
				e.Key = timeout
				return effectOf(ctx, tx, e)
			}, WithTimeout(2*time.Minute))
			in.Handle("short", func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error { <-ctx.Done(); return ctx.Err() }, WithTimeout(20*time.Millisecond))
			in.Handle("inbox's", func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error { <-ctx.Done(); return ctx.Err() })
			arrive(b, in, typed("1", "a", "long"), typed("2", "b", "short"), typed("3", "c", "inbox's"))
			b.awaitLetters(2)
			if !wait.For(wait.Limit(), func() bool { return b.effects("1") == 1 }) {
				t.Fatal("the handler of the long type has no effect")
			}
			for id, want := range map[string]string{"2": "the handler was cancelled after 20ms", "3": "the handler was cancelled after 300ms"} {
				if n := b.count("select count(*) from holdfast.letter where event_id = $1 and errors[1] like $2", id, want+"%"); n != 1 {
					t.Errorf("the letter of %s does not say %q", id, want)
				}
			}
			if name != "ReceiveTx" { // Its transaction is the caller's.
				if n := b.count("select count(*) from effect where key = '2min'"); n != 1 {
					t.Error("the handler of the long type did not wait for locks as long as it may run")
				}
			}
		})
	}
}

func TestOptions_ALeaseLastsAsLongAsTheSlowestTypeMayRun(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	seconds := make(chan int64, 1)
	in.Handle("quick", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var left int64
		err := tx.QueryRow(ctx, "select extract(epoch from lease_until - now())::bigint from holdfast.stored where event_id = $1", e.ID).Scan(&left)
		seconds <- left
		return err
	}, WithTimeout(time.Second))
	in.Handle("slow", effectOf, WithTimeout(time.Hour))
	b.stores(in, typed("1", "k", "quick"))
	b.run(in.Run)
	if left := <-seconds; left < 3600 || left > 3700 {
		t.Errorf("the lease lasts %d s, want those of the slowest type: an hour, and 35 s", left)
	}
}

func TestOptions_ALetterHoldsItsKeyIfItsTypeDoes(t *testing.T) {
	for name, arrive := range arrivals {
		for _, inboxHolds := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", inbox holds: ", inboxHolds), func(t *testing.T) {
				b := setup(t)
				in := b.inbox(func(c *Config) { c.HoldKey = inboxHolds })
				fail := func(context.Context, pgx.Tx, holdfast.Event) error {
					return retry.Permanent(errors.New("no such customer"))
				}
				in.Handle("holds", fail, WithHoldKey(true))
				in.Handle("lets go", fail, WithHoldKey(false))
				in.Handle("as the inbox", fail)
				in.Handle("works", effectOf, WithHoldKey(!inboxHolds)) // What waits does not decide.
				arrive(b, in, typed("1", "held", "holds"), typed("2", "free", "lets go"), typed("3", "inbox", "as the inbox"),
					typed("4", "held", "works"), typed("5", "free", "works"), typed("6", "inbox", "works"))
				want := int64(2)
				if inboxHolds {
					want = 1
				}
				if !wait.For(wait.Limit(), func() bool {
					return b.count("select count(*) from effect") == want && b.count("select count(*) from holdfast.stored") == 3-want
				}) {
					t.Fatalf("%d effects and %d stored events, want %d and %d", b.count("select count(*) from effect"), b.count("select count(*) from holdfast.stored"), want, 3-want)
				}
				if b.effects("4") != 0 || b.effects("5") != 1 {
					t.Errorf("the held key had %d effects, the free one %d; want 0 and 1", b.effects("4"), b.effects("5"))
				}
			})
		}
	}
}

// running counts handlers that run at once.
type running struct {
	mu        sync.Mutex
	now, most int
}

func (r *running) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now++
	r.most = max(r.most, r.now)
}

func (r *running) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now--
}

func (r *running) peak() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}

// limited is a handler that takes its time, and counts itself.
func (r *running) handler(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	r.enter()
	defer r.leave()
	if _, err := tx.Exec(ctx, "select pg_sleep(0.005)"); err != nil {
		return err
	}
	return effectOf(ctx, tx, e)
}

func TestOptions_ATypeRunsNoMoreHandlersAtOnceThanItMay(t *testing.T) {
	for _, limit := range []int{1, 3} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.Workers = 8 })
			var r running
			in.Handle("order.placed", r.handler, WithConcurrency(limit))
			var fails sync.Map
			in.Handle("order.paid", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if _, again := fails.LoadOrStore(e.ID, true); !again {
					return errors.New("not yet")
				}
				return effectOf(ctx, tx, e)
			})
			const n = 200
			log := keyed(n, 20)
			for i := range log {
				if i%5 == 0 {
					log[i].Type = "order.paid"
				}
			}
			// From Kafka, from `stored`, and by Receive at once.
			b.storeMany(in, 50, "stored")
			for i := range 50 {
				b.stores(in, event(fmt.Sprint("apart ", i), fmt.Sprint("apart ", i)))
			}
			b.consumeFake(in, newFakeGeneration(logOf(log...)))
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					if out, err := in.Receive(t.Context(), event(fmt.Sprint("received ", i), "")); err != nil || out != Handled {
						t.Errorf("Receive = %q, %v", out, err)
					}
				})
			}
			all.Wait()
			b.awaitSettled(n)
			b.nothingStored()
			if all, once := b.count("select count(*) from effect"), b.count("select count(distinct id) from effect"); all != n+150 || once != all {
				t.Errorf("%d effects of %d events, want %d", all, once, n+150)
			}
			if wrong := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) as before from effect where key like 'key %') e where before > id"); wrong != 0 {
				t.Errorf("%d events were handled before one of their key that came first", wrong)
			}
			if most := r.peak(); most != limit {
				t.Errorf("%d handlers ran at once, want %d", most, limit)
			}
			b.turnsFree(in, "order.placed", limit)
		})
	}
}

// turnsFree waits until no turn of a type is taken, as one is for a moment when Run looks for stored events.
func (b *bundle) turnsFree(in *Inbox, eventType string, want int) {
	b.Helper()
	var free, waiting int
	if !wait.For(wait.Limit(), func() bool { free, waiting = in.turnsOf(eventType).Look(); return free == want && waiting == 0 }) {
		b.Errorf("%d turns are free and %d wait, want %d and none", free, waiting, want)
	}
}

func TestOptions_OtherTypesGoOnWhileATypeWaitsForItsTurn(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 2 })
	gate := make(chan struct{})
	var r running
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		r.enter()
		defer r.leave()
		select {
		case <-gate:
			return effectOf(ctx, tx, e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}, WithConcurrency(1), WithTimeout(10*time.Minute))
	in.Handle("order.paid", effectOf)
	log := keyed(40, 40)
	for i := range log[20:] {
		log[20+i].Type = "order.paid"
	}
	for i := range 20 { // As many of both types wait in `stored`, the limited ones first.
		b.stores(in, event(fmt.Sprint("stored ", i), fmt.Sprint("stored ", i)))
	}
	for i := range 20 {
		b.stores(in, typed(fmt.Sprint("paid ", i), fmt.Sprint("paid ", i), "order.paid"))
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	if !wait.For(wait.Limit(), func() bool { return b.count("select count(*) from effect") == 40 }) {
		t.Fatalf("%d effects of the other type, want 40", b.count("select count(*) from effect"))
	}
	if most := r.peak(); most != 1 {
		t.Errorf("%d handlers ran at once, want 1", most)
	}
	// ReceiveTx does not wait with the caller's transaction open. Receive waits until its context ends.
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		if out, err := in.ReceiveTx(t.Context(), tx, event("tx", "tx")); err != nil || out != Stored {
			t.Errorf("ReceiveTx = %q, %v; want %q", out, err, Stored)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if out, err := in.Receive(ctx, event("late", "late")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Receive = %q, %v; want the end of its context", out, err)
	}
	close(gate)
	b.awaitSettled(40)
	b.nothingStored()
	b.inOrderAndOnce(81)
}

func TestOptions_AStopDoesNotWaitForEventsThatWaitForTheirTurn(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers, c.StopTimeout = 4, -1 })
	begun := make(chan struct{}, 100)
	in.Handle("order.placed", func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}, WithConcurrency(1), WithTimeout(time.Hour))
	held := make(chan error)
	ctx, release := context.WithCancel(t.Context())
	go func() { _, err := in.Receive(ctx, event("other", "other")); held <- err }()
	<-begun // Its turn is taken by a caller of Receive, who does not care for the stop.
	stop := b.consumeFake(in, newFakeGeneration(logOf(keyed(40, 10)...)))
	if !wait.For(wait.Limit(), func() bool {
		_, waiting := in.turnsOf("order.placed").Look()
		return waiting >= 10
	}) {
		t.Fatal("no events wait for their turn")
	}
	stop()
	release()
	<-held
	if n := len(begun); n != 0 {
		t.Errorf("%d handlers began after the stop", n)
	}
	b.turnsFree(in, "order.placed", 1)
}
