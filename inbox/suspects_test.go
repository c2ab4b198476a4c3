package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// uncleanEnd leaves the partitions of the topic as a killed process does.
func (b *bundle) uncleanEnd(partitions int) {
	b.Helper()
	pgtest.Exec(b, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position, clean)
		select 'billing', 'orders', n, 0, false from generate_series(0, $1::int - 1) n on conflict (consumer, topic, partition) do update set clean = false`, partitions)
}

// eventsOf are n events, each of a key of its own.
func eventsOf(prefix string, n int) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = event(fmt.Sprintf("%s%d", prefix, i), fmt.Sprintf("%s key %d", prefix, i))
	}
	return events
}

func TestSuspects_EventsAfterAKillTakeAsLongAsWithoutIt(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	const n, rounds = 600, 6
	b := setup(t)
	for round := 1; ; round++ {
		without, after := b.takes(n, false), b.takes(n, true)
		t.Logf("%d events took %v, and %v after a kill", n, without, after)
		if after <= 3*without/2 {
			return
		}
		if round == rounds { // A busy machine may delay one of the two.
			t.Fatalf("%d events took %v after a kill, and %v without: want at most half as long again", n, after, without)
		}
	}
}

// takes is how long n events take, after a kill or without one.
func (b *bundle) takes(n int, killed bool) time.Duration {
	b.Helper()
	pgtest.Exec(b, b.db, "truncate holdfast.inbox, holdfast.consumer_position, effect")
	b.observed.record(func() { clear(b.observed.settled) })
	if killed {
		b.uncleanEnd(1)
	}
	pool, counts := b.counted("-- inbox.start\n")
	in := b.inboxOn(pool)
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		time.Sleep(10 * time.Millisecond) // sleep: it stands for a handler's work
		return effectOf(ctx, tx, e)
	})
	begun := time.Now()
	stop := b.consumeFake(in, newFakeGeneration(logOf(eventsOf("", n)...)))
	b.awaitSettled(int64(n))
	took := time.Since(begun)
	stop()
	if effects := b.count("select count(*) from effect"); effects != int64(n) {
		b.Fatalf("%d effects of %d events", effects, n)
	}
	if left := b.count("select count(*) from holdfast.start"); left != 0 {
		b.Errorf("%d counts of starts were left behind", left)
	}
	if most := n/replayChunk + 1; killed && (counts.count > most || counts.count == 0) || !killed && counts.count > 0 {
		b.Errorf("%d statements counted the starts of %d events; want %d at most after a kill, and none without", counts.count, n, most)
	}
	return took
}

func TestSuspects_AHandlerThatHangsAfterAKillDelaysNoOtherPartition(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	b.uncleanEnd(2)
	in := b.inbox()
	hanging, release := make(chan struct{}), make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "hangs" {
			close(hanging)
			select {
			case <-release:
			case <-ctx.Done():
				t.Error("the other partition did not go on before the handler's time was over")
				return ctx.Err()
			}
		}
		return effectOf(ctx, tx, e)
	})
	first := append(eventsOf("0-", 3), event("hangs", "slow"))
	b.run(func(ctx context.Context) error {
		in.registry.start()
		return in.consume(ctx, newManyPartitions(logOf(append(first, eventsOf("1-", 3)...)...), logOf(eventsOf("2-", 20)...)))
	})
	<-hanging
	for i := range 20 {
		b.awaitOutcome(fmt.Sprintf("2-%d", i), Handled)
	}
	for i := range 3 { // Nor other keys of its own partition.
		b.awaitOutcome(fmt.Sprintf("1-%d", i), Handled)
	}
	close(release)
	b.awaitOutcome("hangs", Handled)
}

// What is counted when the process ends again runs alone afterwards: it must not be many.
func TestSuspects_FewStartsAreCountedAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	b.uncleanEnd(1)
	const n = 600
	in := b.inbox()
	var most atomic.Int64
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "0" {
			wait.Until(t, "two chunks are counted", func() bool { return b.count("select count(*) from holdfast.start") >= 2*replayChunk })
		}
		most.Store(max(most.Load(), b.count("select count(*) from holdfast.start")))
		return effectOf(ctx, tx, e)
	})
	b.consumeFake(in, newFakeGeneration(logOf(eventsOf("", n)...)))
	b.awaitSettled(n)
	if most.Load() > 3*replayChunk { // A chunk is counted before its first event begins.
		t.Errorf("%d starts were counted at once, want %d at most", most.Load(), 3*replayChunk)
	}
}

// Events that were counted when the process ended a second time run alone, the others as always.
func TestSuspects_OnlyWhatWasBegunAtASecondKillRunsAlone(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	b.uncleanEnd(1)
	events := eventsOf("", 40)
	pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', '3', 1), ('billing', 'shop', '7', 1)`)
	in := b.inbox()
	running := make(chan struct{}, len(events))
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		running <- struct{}{}
		defer func() { <-running }()
		if others := len(running) - 1; (e.ID == "3" || e.ID == "7") && others > 0 {
			t.Errorf("%d handlers run beside the suspect %s", others, e.ID)
		}
		if starts := b.count("select starts from holdfast.start where event_id = $1", e.ID); (starts == 2) != (e.ID == "3" || e.ID == "7") {
			t.Errorf("%d starts of %s are counted", starts, e.ID)
		}
		return effectOf(ctx, tx, e)
	})
	stop := b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(int64(len(events)))
	stop()
	if left := b.count("select count(*) from holdfast.start"); left != 0 {
		t.Errorf("%d counts of starts were left behind", left)
	}
}

// A payload that ends the process must not take as many processes with it as an event has attempts.
func TestSuspects_AKillerIsGivenUpAfterAFewEndsHoweverManyAttempts(t *testing.T) {
	for name, row := range map[string]struct {
		attempts, counted int
		want              Outcome
	}{
		"with one attempt it runs alone once":     {1, 1, Handled},
		"and is given up then":                    {1, 2, Dead},
		"with three it runs alone once":           {3, 1, Handled},
		"and is given up, too":                    {3, 2, Dead},
		"with ten it runs alone twice":            {10, 2, Handled},
		"and is given up after four ends":         {10, 3, Dead},
		"so it is if there is no end to attempts": {-1, 3, Dead},
		"which does not give it up before that":   {-1, 2, Handled},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.uncleanEnd(1)
			pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', 'killer', $1)`, row.counted)
			in := b.inbox(func(c *Config) { c.Retry.Attempts = row.attempts })
			in.Handle("order.placed", effectOf)
			b.consumeFake(in, newFakeGeneration(logOf(event("killer", "k"))))
			b.awaitOutcome("killer", row.want)
		})
	}
}

// A batch and the followers of a stored event settle many starts in one transaction.
func TestSuspects_StartsOfBatchesAndFollowersAreForgotten(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	b.uncleanEnd(1)
	in := b.inbox(func(c *Config) {
		c.BatchSize = 10
		c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour
	})
	in.HandleBatch("order.placed", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil })
	in.Handle("order.fails", func(context.Context, pgx.Tx, holdfast.Event) error { return fmt.Errorf("not now") })
	events := eventsOf("", 100)
	for i := range events {
		if i%2 == 1 {
			events[i].Type, events[i].Key = "order.fails", "one key"
		}
	}
	stop := b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(100)
	stop()
	if handled, stored := b.count("select count(*) from holdfast.inbox where result = 'handled'"), b.count("select count(*) from holdfast.stored"); handled != 50 || stored != 50 {
		t.Errorf("%d handled and %d stored, want 50 and 50", handled, stored)
	}
	if left := b.count("select count(*) from holdfast.start"); left != 0 {
		t.Errorf("%d counts of starts were left behind", left)
	}
}

// A suspect that waits for a turn of its type holds up no suspect of another partition.
func TestSuspects_ASuspectWaitsForItsTurnBesideOtherSuspects(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	b.uncleanEnd(2)
	pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, starts) values ('billing', 'shop', '0/0', 1), ('billing', 'shop', '1/0', 1)`)
	in := b.inbox(func(c *Config) { c.Timeout = 10 * time.Minute })
	running, hold := make(chan struct{}), make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "has the turn" {
			close(running)
			<-hold
		}
		return effectOf(ctx, tx, e)
	}, WithConcurrency(1))
	in.Handle("order.paid", effectOf)
	received := make(chan error, 1)
	go func() { _, err := in.Receive(t.Context(), event("has the turn", "a")); received <- err }()
	<-running
	g := newGrowingGeneration(logOf(event("0/0", "b")), logOf(typed("1/0", "c", "order.paid")))
	b.run(func(ctx context.Context) error { return in.consume(ctx, g) })
	placed := in.turnsOf("order.placed")
	wait.Until(t, "the suspect waits for its turn", func() bool {
		_, waiting := placed.Look()
		return waiting == 1
	})
	g.add(1)
	if !wait.For(wait.Limit(), func() bool { return b.effects("1/0") == 1 }) {
		t.Error("the suspect of the other partition waits for a turn that it does not need")
	}
	close(hold)
	if err := <-received; err != nil {
		t.Error(err)
	}
	b.awaitOutcome("0/0", Handled)
}
