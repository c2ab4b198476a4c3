package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// withoutSweeps handles stored events as Run does.
func (in *Inbox) withoutSweeps(ctx context.Context) error {
	g := loop.NewGroup(ctx)
	g.Run(in.pauses.watch)
	g.Run(in.backlog.workStored)
	return g.Wait()
}

// A partition's sender receives the events of each key one after the other, while Run handles what failed, on two nodes,
// in the same moments. Each key's effects must come in order, every event once, and nothing may be left dormant.
func TestStored_FollowersOfAParkedKeyNeitherOvertakeNorAreForgotten(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	failing := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if rand.IntN(10) == 0 {
			return errors.New("now and then")
		}
		return effectOf(ctx, tx, e)
	}
	var nodes []*Inbox
	for range 2 {
		in := b.inbox(func(c *Config) {
			c.Retry = retry.Policy{Attempts: 1000, Base: time.Microsecond, Cap: time.Millisecond}
			c.PollMax = 2 * time.Millisecond
		})
		in.Handle("order.placed", failing)
		nodes = append(nodes, in)
		in.registry.start()
		b.run(in.withoutSweeps) // A sweep would resume what was forgotten.
	}
	const keys, each = 6, 70
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := range each {
				e := event(fmt.Sprintf("%d-%03d", k, i), fmt.Sprint(k))
				if _, err := nodes[i%2].Receive(b.Context(), e); err != nil {
					t.Error(err)
				}
				// At random moments, so that many arrive just as the queue before them ends.
				_ = loop.Sleep(b.Context(), time.Duration(rand.Int64N(int64(12*time.Millisecond))))
			}
		})
	}
	wg.Wait()
	b.await("every event to be handled", func(o *observations) bool {
		n := 0
		for _, outcomes := range o.outcomes {
			if slices.Contains(outcomes, Handled) {
				n++
			}
		}
		return n == keys*each
	})
	if n := b.count("select count(*) from effect"); n != keys*each {
		t.Errorf("%d effects, want %d", n, keys*each)
	}
	if n := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) before from effect) x where before > id"); n != 0 {
		t.Errorf("%d events overtook another of their key", n)
	}
	if n := b.count("select count(*) from holdfast.stored"); n != 0 {
		t.Errorf("%d rows are still stored", n)
	}
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	stored := 0
	for _, outcomes := range b.observed.outcomes {
		if slices.Contains(outcomes, Stored) {
			stored++
		}
	}
	t.Logf("%d of %d were stored behind another", stored, keys*each)
	if stored == 0 {
		t.Error("no event ever followed another: the test tests nothing")
	}
}

func TestStored_TwoNodesShareTheStoredEventsAndKeepEachKeysOrder(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	first := b.inbox()
	first.Handle("order.placed", effectOf)
	const n = 200
	for i := range n {
		b.store(first, event(fmt.Sprintf("%03d", i), fmt.Sprint(i%7)))
	}
	second := b.inbox()
	second.Handle("order.placed", effectOf)
	b.run(first.Run)
	b.run(second.Run)
	b.await("all", func(o *observations) bool { return len(o.outcomes) == n })
	if got := b.count("select count(*) from effect"); got != n {
		t.Errorf("%d effects, want %d", got, n)
	}
	if bad := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) before from effect) x where before > id"); bad != 0 {
		t.Errorf("%d events overtook another of their key", bad)
	}
}

func TestStored_AWorkerWhoseLeaseWasTakenWritesNothing(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		// Another worker claims the event while this one is at it.
		pgtest.Exec(t, b.db, "update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour'")
		return effectOf(ctx, tx, e)
	})
	b.store(in, event("1", "k"))
	b.run(in.Run)
	b.await("the loss of the lease", func(o *observations) bool { return o.lost == 1 })
	if b.effects("1") != 0 || b.count("select count(*) from holdfast.stored") != 1 {
		t.Error("a worker without a lease changed something")
	}
}

func TestStored_AStoredEventThatEndsItsProcessIsGivenUpAfterItsAttempts(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	b.store(in, event("2", "k"))
	// Three claims were committed, and no process came back from one.
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 3, lease_token = gen_random_uuid(), lease_until = now() - interval '1 second' where event_id = '1'")
	b.run(in.Run)
	b.awaitOutcome("1", Dead)
	b.awaitOutcome("2", Handled)
	if b.effects("1") != 0 {
		t.Error("it was run a fourth time")
	}
}

func TestStored_ALeaseFromAClockThatWasWrongRunsOut(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	pgtest.Exec(t, b.db, "update holdfast.stored set lease_token = gen_random_uuid(), lease_until = now() + interval '10 years'")
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
}

// After an unclean end each event that was in a call has an attempt more than errors. They keep their places: what came due later waits for none
// of them, and they do not wait for it.
func TestStored_SuspectsRunOneAtATime(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 3 })
	var running, most, fresh atomic.Int32
	var after sync.Map // how many others had been handled
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if strings.HasPrefix(e.ID, "fresh") {
			time.Sleep(time.Millisecond) // sleep: so that there is a backlog
			fresh.Add(1)
			return effectOf(ctx, tx, e)
		}
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		if got := AttemptFrom(ctx); got != 2 {
			t.Errorf("%s has attempt %d, want 2: to wait costs none", e.ID, got)
		}
		begun := fresh.Load()
		after.Store(e.ID, begun)
		for fresh.Load() < begun+20 { // Others go on beside it.
			time.Sleep(time.Millisecond) // sleep: they are handled meanwhile, or the handler's time ends
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return effectOf(ctx, tx, e)
	})
	for _, name := range []string{"suspect", "fresh"} {
		for i := range map[string]int{"suspect": 4, "fresh": 200}[name] {
			id := fmt.Sprint(name, i)
			if _, err := in.Store(b.Context(), event(id, id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 1, lease_until = now() - interval '1 second' where event_id like 'suspect%'")
	stop := b.run(in.Run)
	for i := range 4 {
		b.awaitOutcome(fmt.Sprint("suspect", i), Handled)
	}
	stop()
	if most.Load() != 1 {
		t.Errorf("%d suspects ran at once", most.Load())
	}
	for i := range 4 {
		if n, _ := after.Load(fmt.Sprint("suspect", i)); n.(int32) > int32(60*(i+1)) {
			t.Errorf("suspect %d waited for %d others, which came due later", i, n)
		}
	}
}

// One that has failed with an error meanwhile is no suspect any more, and the letter says of which attempts nothing is known.
func TestStored_ASuspectThatFailsIsNoneAnyMore(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Retry = retry.Policy{Attempts: 4, Base: time.Millisecond, Cap: time.Millisecond} })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("it fails") })
	if _, err := in.Store(b.Context(), event("1", "k")); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 2")
	stop := b.run(in.Run)
	b.awaitOutcome("1", Dead)
	stop()
	if got := pgtest.Text(t, b.db, "select string_agg(left(e, 12), ', ' order by n) from holdfast.letter, unnest(errors) with ordinality u (e, n)"); got != "nothing was , nothing was , it fails, it fails" {
		t.Errorf("the letter's errors are %s", got)
	}
	if n := b.count("select attempts from holdfast.letter"); n != 4 {
		t.Errorf("it has %d attempts, want 4", n)
	}
}

// Claims have passed the others by then.
func TestStored_TheNextSuspectIsLookedForWhenOneEnds(t *testing.T) {
	now := time.Now()
	in := setup(t).inbox()
	cl, s := in.claims, &claimed{alone: true}
	cl.mark = claimMark{at: now, took: time.Second, ended: now}
	if cl.mark.whole(now) || !cl.suspects.Try() {
		t.Fatal("the next look is one at everything in any case: the test tests nothing")
	}
	for range 2 { // It may be said twice.
		if cl.leave(s); !cl.mark.whole(now) {
			t.Error("the next claim does not look at everything")
		}
		if free, _ := cl.suspects.Look(); free != 1 {
			t.Errorf("%d suspects may run now, want 1", free)
		}
	}
	select {
	case <-in.wakeup:
	default:
		t.Error("nobody is woken")
	}
}

// What follows a stored event in its key is claimed with its end, unless it is a suspect.
func TestStored_ASuspectIsNotTakenWithTheEventBeforeIt(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	for i := range 3 {
		b.store(in, event(fmt.Sprint(i), "k"))
	}
	pgtest.Exec(t, b.db, "update holdfast.stored set attempts = 1 where event_id = '1'")
	if !in.claims.suspects.Try() {
		t.Fatal("no turn")
	}
	for _, want := range []string{"", "1 2"} { // which are handled then
		got, err := in.claims.claim(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got {
			if err := in.backlog.work(t.Context(), s, nil); err != nil {
				t.Fatal(err)
			}
		}
		if handled := pgtest.Text(t, b.db, "select string_agg(event_id, ' ' order by event_id) from holdfast.inbox where result = 'handled'"); handled != strings.TrimSpace("0 "+want) {
			t.Errorf("handled are %s, want 0 %s", handled, want)
		}
		if want == "" {
			in.claims.suspects.Leave()
		}
	}
}

func TestStored_AsManyErrorsAreKeptAsSuspectsAreToldBy(t *testing.T) {
	if keptErrors != fmt.Sprint(failure.MaxErrors) {
		t.Errorf("statements say %s, want %d", keptErrors, failure.MaxErrors)
	}
}

func TestStored_ASuspectHasHadAnAttemptThatEndedWithoutAWord(t *testing.T) {
	errs := func(n int) []string { return make([]string, n) }
	for _, row := range []struct {
		attempts int // with the present one
		errors   []string
		want     bool
	}{
		{1, nil, false}, {2, errs(1), false}, {2, nil, true}, {5, errs(4), false}, {5, errs(3), true}, {100, errs(20), false}, {100, errs(19), true}, {1, errs(3), false},
	} {
		if got := (&claimed{attempts: row.attempts, errors: row.errors}).suspect(); got != row.want {
			t.Errorf("attempt %d after %d errors: %v", row.attempts, len(row.errors), got)
		}
	}
}
