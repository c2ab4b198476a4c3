package inbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/dependency"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/waiting"
)

// provider is a service that handlers call, and that may be away.
type provider struct {
	away  atomic.Bool
	calls atomic.Int64

	mu      sync.Mutex
	running int
	most    int // calls at once while it was away
}

// handler calls the provider, which takes a moment, and then leaves a trace.
func (p *provider) handler(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	p.calls.Add(1)
	if p.away.Load() {
		p.mu.Lock()
		p.running++
		p.most = max(p.most, p.running)
		p.mu.Unlock()
		// sleep: how long the call takes to fail, so that calls at once would overlap.
		time.Sleep(30 * time.Millisecond)
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
		return Unavailable("stripe", fmt.Errorf("charge: %w", io.ErrUnexpectedEOF))
	}
	return effectOf(ctx, tx, e)
}

// knowsAway waits until a node knows that something is away, or is not.
func (b *bundle) knowsAway(in *Inbox, eventType string, away bool) {
	b.Helper()
	wait.Until(b, fmt.Sprintf("the node knows that what %s needs is away: %t", eventType, away), func() bool { return in.receiver.dependencies.waits(eventType) == away })
}

// awayInDatabase waits until the row of stripe says that it is away.
func (b *bundle) awayInDatabase() {
	b.Helper()
	wait.Until(b, "the row says that it is away", func() bool {
		return b.count("select count(*) from holdfast.dependency where consumer = 'billing' and name = 'stripe' and away") == 1
	})
}

func mailed(id, key string) holdfast.Event {
	e := event(id, key)
	e.Type = "order.mailed"
	return e
}

// The outage of something that handlers need spends no attempt, though it lasts for longer than all of them would: Attempts is 3, and their
// delays are milliseconds.
func TestDependencies_AnOutageSpendsNoAttempt(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe"))
	in.Handle("order.mailed", effectOf)
	b.receive(in, event("a1", "a"), Stored) // It finds the provider away.
	b.receive(in, event("a2", "a"), Stored)
	b.receive(in, event("b1", "b"), Stored)
	b.receive(in, mailed("m1", "m"), Handled)
	b.receive(in, mailed("a3", "a"), Stored) // It follows others of its key.
	if n := p.calls.Load(); n != 1 {
		t.Errorf("%d handlers began, want that of the first event", n)
	}
	b.awayInDatabase()
	b.run(in.Run)
	wait.Until(t, "two events have tried it", func() bool { return p.calls.Load() >= 3 })
	for _, e := range b.waiting(waiting.Filter{Consumer: "billing"}) {
		if e.Attempts > 1 || e.Error != "" || e.Attempts == 1 && !e.Running {
			t.Errorf("%s has spent %d attempts: %q", e.Event.ID, e.Attempts, e.Error)
		}
	}
	b.receive(in, mailed("m2", "m"), Handled)
	p.away.Store(false)
	back := time.Now()
	wait.Until(t, "all are handled", func() bool { return b.count("select count(*) from effect") == 6 })
	if took := time.Since(back); took > 8*time.Second {
		t.Errorf("that took %s after it was back", took)
	}
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	b.inOrderAndOnce(6)
	if got := b.order(); !slices.Contains(got, "a3") {
		t.Errorf("handled: %q", got)
	}
	b.knowsAway(in, "order.placed", false)
	b.receive(in, event("c1", "c"), Handled)
}

// One event at a time tries it, on all nodes together, and each node knows within a second or so.
func TestDependencies_OneEventTriesForAllNodes(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	b := setupKafka(t, 2)
	var p provider
	nodes := make([]*Inbox, 2)
	for i := range nodes {
		nodes[i] = b.inbox()
		nodes[i].Handle("order.placed", p.handler, Needs("stripe"))
		b.consume(nodes[i])
	}
	all := [][]holdfast.Event{b.events(0, 200), b.events(1, 200)}
	b.produce(0, all[0][:100]...)
	b.produce(1, all[1][:100]...)
	b.awaitHandled(200)
	p.away.Store(true)
	b.receive(nodes[0], event("first", ""), Stored)
	b.knowsAway(nodes[0], "order.placed", true)
	began := time.Now()
	b.knowsAway(nodes[1], "order.placed", true)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("the other node knew after %s", took)
	}
	p.mu.Lock()
	p.most = 0 // Handlers that had begun before may have overlapped.
	p.mu.Unlock()
	calls := p.calls.Load()
	b.produce(0, all[0][100:]...)
	b.produce(1, all[1][100:]...)
	wait.Until(t, "its events are stored", func() bool { return b.count("select count(*) from holdfast.stored") == 201 })
	wait.Until(t, "it was tried three times", func() bool { return p.calls.Load() >= calls+3 })
	p.mu.Lock()
	most := p.most
	p.mu.Unlock()
	if most > 1 {
		t.Errorf("%d events tried it at once", most)
	}
	p.away.Store(false)
	b.awaitHandled(400)
	wait.Until(t, "nothing is stored", func() bool { return b.count("select count(*) from holdfast.stored") == 0 })
	b.inOrderAndOnce(401)
}

// When as many events are stored as may be, the partition waits.
func TestDependencies_AFullQueueHoldsItsPartition(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setupKafka(t, 1)
	var p provider
	p.away.Store(true)
	var full atomic.Bool
	in := b.inbox(func(c *Config) {
		c.MaxStored = 20
		c.Observer.OnFull = func(holdfast.Event, error) { full.Store(true) }
	})
	in.Handle("order.placed", p.handler, Needs("stripe"))
	b.produce(0, b.events(0, 60)...)
	b.consume(in)
	wait.Until(t, "an event found no room", full.Load)
	// The count of what is stored does not see what the workers store at that moment.
	if n := b.count("select count(*) from holdfast.stored"); n > 20+int64(in.c.Workers) {
		t.Errorf("%d events are stored, of at most 20", n)
	}
	p.away.Store(false)
	b.awaitHandled(60)
	wait.Until(t, "nothing is stored", func() bool { return b.count("select count(*) from holdfast.stored") == 0 })
	b.inOrderAndOnce(60)
}

func TestDependencies_AStoredBatchAndOneWithALimitPauseToo(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setupKafka(t, 1)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.HandleBatch("order.placed", func(ctx context.Context, tx pgx.Tx, es []holdfast.Event) error {
		for _, e := range es {
			if err := p.handler(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	}, Needs("stripe"))
	in.Handle("order.mailed", p.handler, Needs("stripe"), WithConcurrency(2))
	all := b.events(0, 40)
	for i := range all {
		if i%2 == 1 {
			all[i].Type = "order.mailed"
		}
	}
	b.consume(in)
	b.produce(0, all...)
	wait.Until(t, "all are stored", func() bool { return b.count("select count(*) from holdfast.stored") == 40 })
	if n := b.count("select count(*) from holdfast.stored where attempts > 1 or cardinality(errors) > 0"); n != 0 {
		t.Errorf("%d events have spent attempts", n)
	}
	p.away.Store(false)
	b.awaitHandled(40)
	b.inOrderAndOnce(40)
}

func TestDependencies_ACallersTransactionStoresWhatNeedsIt(t *testing.T) {
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe"))
	for _, id := range []string{"1", "2"} {
		err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
			out, err := in.ReceiveTx(t.Context(), tx, event(id, ""))
			if out != Stored {
				t.Errorf("ReceiveTx: %q, want stored", out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := p.calls.Load(); n != 1 {
		t.Errorf("%d handlers began, want one", n)
	}
}

// Which errors pause a dependency, and which are the event's.
func TestDependencies_WhatTheRequestIsToBlameForIsAFailure(t *testing.T) {
	b := setup(t)
	var give error
	for name, c := range map[string]struct {
		err  error
		want Outcome
		says string
	}{
		"a refused card":         {Unavailable("stripe", retry.Permanent(errors.New("card declined"))), Dead, "card declined"},
		"nothing":                {Unavailable("stripe", nil), Handled, ""},
		"an unknown error":       {Unavailable("stripe", errors.New("maintenance")), Stored, ""},
		"a time-out":             {fmt.Errorf("charge: %w", Unavailable("stripe", context.DeadlineExceeded)), Stored, ""},
		"a certificate":          {Unavailable("stripe", &tls.CertificateVerificationError{Err: errors.New("expired")}), Stored, ""},
		"given up all the same":  {retry.Permanent(Unavailable("stripe", io.EOF)), Dead, "stripe is away"},
		"what nobody registered": {Unavailable("smtp", io.EOF), Retrying, `add inbox.Needs("smtp")`},
	} {
		in := b.inbox(func(c *Config) { c.Consumer = "consumer " + strings.ReplaceAll(name, "'", "") })
		in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return give }, Needs("stripe"))
		give = c.err
		b.receive(in, event("1", ""), c.want)
		if got := in.receiver.dependencies.waits("order.placed"); got != (c.want == Stored) {
			t.Errorf("%s: its type waits: %t", name, got)
		}
		if c.says != "" && b.count("select (select count(*) from holdfast.stored where errors::text like $1) + (select count(*) from holdfast.letter where errors::text like $1)", "%"+strings.ReplaceAll(c.says, `"`, `%`)+"%") != 1 {
			t.Errorf("%s: no error says %q", name, c.says)
		}
	}
}

// A handler that ran out of time while it waited for its dependency has spent no attempt either.
func TestDependencies_ATimeOutOfTheHandlerMayBeItsDependencys(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		<-ctx.Done()
		return Unavailable("stripe", ctx.Err())
	}, Needs("stripe"), WithTimeout(200*time.Millisecond))
	b.receive(in, event("1", ""), Stored)
	b.awayInDatabase()
}

// An event that a node never handles, because it says each time that something is away, holds up others once and no more.
func TestDependencies_AnEventThatAloneSaysSoIsNotBelieved(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "liar" {
			return Unavailable("stripe", io.EOF)
		}
		return effectOf(ctx, tx, e)
	}, Needs("stripe"))
	b.receive(in, event("liar", ""), Stored)
	b.receive(in, event("1", ""), Stored)
	b.run(in.Run)
	wait.Until(t, "the other event showed that it is there", func() bool { return b.effects("1") == 1 })
	b.knowsAway(in, "order.placed", false)
	wait.Until(t, "it has said so again", func() bool {
		return b.count("select count(*) from holdfast.stored where event_id = 'liar' and losses >= 102") == 1
	})
	for i := range 20 {
		b.receive(in, event(fmt.Sprint("other ", i), ""), Handled)
	}
	wait.Until(t, "it has spent an attempt", func() bool {
		return b.count("select count(*) from holdfast.stored where event_id = 'liar' and cardinality(errors) = 1") == 1
	})
}

// A node that starts during an outage begins nothing, and a try that ends with its process passes to another node.
func TestDependencies_AnOutageOutlivesItsNodes(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	first := b.inbox()
	first.Handle("order.placed", p.handler, Needs("stripe"))
	b.receive(first, event("1", ""), Stored)
	b.awayInDatabase()
	p.away.Store(false)
	// A node has claimed the try, and died.
	pgtest.Exec(t, b.db, "update holdfast.dependency set until = now() + interval '3 seconds'")
	later := b.inbox()
	later.Handle("order.placed", p.handler, Needs("stripe"))
	b.run(later.Run)
	b.knowsAway(later, "order.placed", true)
	b.receive(later, event("2", ""), Stored)
	if n := p.calls.Load(); n != 1 {
		t.Errorf("%d handlers began, want one", n)
	}
	wait.Until(t, "both are handled", func() bool { return b.count("select count(*) from effect") == 2 })
}

// While the database cannot be told, this node pauses alone, and tells later.
func TestDependencies_ADatabaseThatIsAwayIsToldLater(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe"))
	pgtest.Exec(t, b.db, "create function refuse() returns trigger language plpgsql as $$ begin raise 'not now' using errcode = '57P03'; end $$")
	pgtest.Exec(t, b.db, "create trigger refuse before insert on holdfast.dependency for each row execute function refuse()")
	b.receive(in, event("1", ""), Stored)
	b.await("the database refused", func(o *observations) bool { return len(o.errs) > 0 })
	b.receive(in, event("2", ""), Stored)
	pgtest.Exec(t, b.db, "drop trigger refuse on holdfast.dependency")
	b.run(in.Run)
	b.awayInDatabase()
}

// People see why an event waits.
func TestDependencies_WhatWaitsSaysWhy(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	var p provider
	p.away.Store(true)
	in := b.inbox()
	in.Handle("order.placed", p.handler, Needs("stripe", "smtp"))
	if err := in.registry.start(); err != nil {
		t.Fatal(err)
	}
	if err := in.declarations.declare(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.receive(in, event("1", "k"), Stored)
	b.receive(in, event("2", "k"), Stored)
	b.awayInDatabase()
	var whys []string
	for _, e := range b.waiting(waiting.Filter{Consumer: "billing"}) {
		whys = append(whys, e.Event.ID+" "+string(e.Why))
	}
	if got := strings.Join(whys, ", "); got != "1 dependency, 2 behind-event" {
		t.Errorf("they wait for: %s", got)
	}
}

// What the dependency asks for is kept, wherever the handler says so.
func TestDependencies_ItIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	for name, err := range map[string]error{
		"inside":  Unavailable("stripe", retry.After(io.EOF, 5*time.Minute)),
		"outside": retry.After(Unavailable("stripe", io.EOF), 5*time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return err }, Needs("stripe"))
			b.receive(in, event("1", ""), Stored)
			b.awayInDatabase()
			if n := b.count("select count(*) from holdfast.dependency where until > now() + interval '4 minutes'"); n != 1 {
				t.Error("it is tried earlier")
			}
		})
	}
}

func TestDependencies_NamesAreChecked(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"stripe": true, "smtp-1.eu_West": true, strings.Repeat("a", 100): true,
		"": false, "a b": false, "ä": false, "a,b": false, "{}": false, strings.Repeat("a", 101): false,
	} {
		in := newInbox(nil, Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler)}.withDefaults())
		in.Handle("order.placed", effectOf, Needs(name))
		err := in.registry.start()
		if (err == nil) != ok || err != nil && (!errors.Is(err, ErrConfiguration) || !strings.Contains(err.Error(), "order.placed") || !strings.Contains(err.Error(), "1 to 100")) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Why something is away is kept and logged without what a handler's error has of its event, or as RedactErrorFunc says.
func TestDependencies_WhyItIsAwayHasNothingOfTheEvent(t *testing.T) {
	for name, c := range map[string]struct {
		redact func(error) string
		want   string
	}{
		"as usual":        {nil, "charge: provider says 503"},
		"nothing is said": {WithholdError, "TRANSIENT"},
		"in other words":  {func(error) string { return "no charge" }, "no charge"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var log logtest.Log
			in := b.inbox(func(c2 *Config) { c2.RedactErrorFunc, c2.Logger = c.redact, slog.New(slog.NewTextHandler(&log, nil)) })
			in.Handle("order.placed", func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
				return Unavailable("stripe", fmt.Errorf("charge: provider says 503 %s", e.Payload))
			}, Needs("stripe"))
			e := event("1", "")
			e.Payload = []byte("4242424242424242")
			b.receive(in, e, Stored)
			b.awayInDatabase()
			var row string
			if err := b.db.QueryRow(t.Context(), "select error from holdfast.dependency").Scan(&row); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(row, c.want) || strings.Contains(row, "4242") {
				t.Errorf("the row says %q, want %q", row, c.want)
			}
			if out := log.String(); !strings.Contains(out, c.want) || strings.Contains(out, "4242") {
				t.Errorf("the log says %q, want %q", out, c.want)
			}
		})
	}
}

// A look that began before this node knew better says nothing.
func TestDependencies_AnOldLookChangesNothing(t *testing.T) {
	t.Parallel()
	in := newInbox(nil, Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler)}.withDefaults())
	in.Handle("order.placed", effectOf, Needs("stripe"))
	dp, now := in.receiver.dependencies, time.Now()
	in.registry.start()
	dp.note(t.Context(), []string{"stripe", "another consumer's word"}, []int64{1_000_000, 0}, now)
	if len(dp.away) != 1 || !dp.waits("order.placed") {
		t.Fatalf("away: %v", dp.away)
	}
	_, change := dp.missing("order.placed")
	dp.changed["stripe"] = now.Add(2)
	dp.note(t.Context(), nil, nil, now.Add(1))
	if !dp.waits("order.placed") {
		t.Error("an old look opened it")
	}
	dp.note(t.Context(), nil, nil, now.Add(3))
	if dp.waits("order.placed") {
		t.Error("a new look did not open it")
	}
	select {
	case <-change:
	default:
		t.Error("who waits for it was not woken")
	}
	delete(dp.changed, "stripe")
	if types, next, _ := dp.due([]string{"order.placed"}, now); len(types) != 0 || !next.IsZero() {
		t.Errorf("due: %v, %v", types, next)
	}
	dp.note(t.Context(), []string{"stripe"}, []int64{dependency.Base.Microseconds()}, now.Add(4))
	if types, next, _ := dp.due([]string{"order.placed"}, now); len(types) != 0 || !next.Equal(now.Add(4+dependency.Base)) {
		t.Errorf("due: %v, %v", types, next)
	}
	if types, _, _ := dp.due([]string{"order.placed"}, now.Add(4+dependency.Base)); len(types) != 1 {
		t.Errorf("due: %v", types)
	}
}
