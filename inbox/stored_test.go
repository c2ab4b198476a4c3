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

// After an unclean end each event that was in a call has an attempt more than errors.
func TestStored_SuspectsRunOneAtATime(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var running, most, fresh atomic.Int32
	var first atomic.Bool
	first.Store(true)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if strings.HasPrefix(e.ID, "fresh") {
			fresh.Add(1)
			return effectOf(ctx, tx, e)
		}
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer running.Add(-1)
		if got := AttemptFrom(ctx); got != 2 {
			t.Errorf("%s has attempt %d, want 2: to be handed back costs none", e.ID, got)
		}
		for begun := time.Now(); fresh.Load() < 4 || first.Load() && time.Since(begun) < 3*suspectRest; { // Others go on beside it, and its like come again.
			time.Sleep(time.Millisecond) // sleep: that happens meanwhile, or the handler's time ends
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		first.Store(false)
		return effectOf(ctx, tx, e)
	})
	for i := range 4 {
		for _, name := range []string{"suspect", "fresh"} {
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
		b.awaitOutcome(fmt.Sprint("fresh", i), Handled)
	}
	stop()
	if most.Load() != 1 {
		t.Errorf("%d suspects ran at once", most.Load())
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
