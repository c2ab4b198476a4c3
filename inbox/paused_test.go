package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/waiting"
)

var billing = waiting.Pausable{Consumer: "billing"}

func (b *bundle) pauses(what waiting.Pausable) {
	b.Helper()
	if changed, err := b.room().Pause(b.Context(), what, "ann", "the tax service is away"); !changed || err != nil {
		b.Fatal(changed, err)
	}
}

func (b *bundle) resumes(what waiting.Pausable) {
	b.Helper()
	if changed, err := b.room().Resume(b.Context(), what, "ann", "it is back"); !changed || err != nil {
		b.Fatal(changed, err)
	}
}

// knows waits until a node has seen that its consumer is paused, or is not.
func (b *bundle) knows(in *Inbox, paused bool) {
	b.Helper()
	wait.Until(b, fmt.Sprintf("the node knows that it is paused: %t", paused), func() bool {
		in.pauses.mu.Lock()
		defer in.pauses.mu.Unlock()
		return in.pauses.known && in.pauses.paused == paused
	})
}

// order are the ids of all effects.
func (b *bundle) order() []string {
	b.Helper()
	rows, _ := b.db.Query(b.Context(), "select id from effect order by n")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.Fatal(err)
	}
	return ids
}

func TestPaused_APausedConsumerHandlesNothingFromKafka(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setupKafka(t, 2)
	all := b.events(0, 60)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	b.produce(0, all[:10]...)
	b.awaitHandled(10)
	b.pauses(billing)
	b.knows(in, true)
	wait.Until(t, "the partitions are let go of", func() bool { return in.consumer.memory.Partitions.Load() == 0 })
	b.produce(0, all[10:30]...)
	later := b.inbox() // a node that starts meanwhile
	later.Handle("order.placed", effectOf)
	stop := b.consume(later)
	b.knows(later, true)
	wait.Until(t, "it is in the group", later.healthy)
	wait.Until(t, "a paused node is healthy", in.healthy)
	// sleep: that nothing is handled has no event to wait for. A node that went on reading would have handled it by then.
	time.Sleep(2 * time.Second)
	if n := b.count("select count(*) from effect"); n != 10 {
		t.Errorf("%d events were handled, want those before the pause", n)
	}
	stop() // It stops in order while it is paused.
	b.resumes(billing)
	b.produce(0, all[30:]...)
	b.awaitHandled(60)
	b.inOrderAndOnce(60)
}

// Its handler runs when the pause comes, and may finish. The events after it wait.
func TestPaused_APauseLetsRunningHandlersFinish(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupKafka(t, 1)
	begun, finish := make(chan string, 10), make(chan struct{})
	in := b.inbox(func(c *Config) { c.Workers, c.StopTimeout = 2, time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		begun <- e.ID
		<-finish
		return effectOf(ctx, tx, e)
	})
	b.group.SessionTimeout = 2 * time.Minute
	events := []holdfast.Event{event("1", "k"), event("2", "k"), event("3", "k")}
	for i := range events {
		events[i].Topic = b.topic
	}
	b.produce(0, events...)
	b.consume(in)
	if id := <-begun; id != "1" {
		t.Fatalf("%s began first", id)
	}
	b.pauses(billing)
	b.knows(in, true)
	close(finish)
	b.awaitOutcome("1", Handled)
	wait.Until(t, "the partition is let go of", func() bool { return in.consumer.memory.Partitions.Load() == 0 })
	if got := b.order(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("handled: %q", got)
	}
	b.resumes(billing)
	b.awaitOutcome("3", Handled)
	if got := b.order(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("handled: %q", got)
	}
}

func TestPaused_APausedConsumerStoresWhatItReceives(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	b.pauses(billing)
	wait.Until(t, "Receive knows", func() bool { // It looks every two seconds, and no loop runs.
		paused, err := in.pauses.now(t.Context(), b.db)
		return err == nil && paused
	})
	b.receive(in, event("2", "k"), Stored)
	b.receive(in, event("2", "k"), Duplicate)
	b.receive(in, event("x", ""), Stored)
	b.try(in.TryReceive, event("3", "k"), Stored, nil)
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		out, err := in.ReceiveTx(t.Context(), tx, event("4", "k"))
		if out != Stored {
			t.Errorf("ReceiveTx: %q, want stored", out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(in.Run)
	b.knows(in, true)
	if got := b.order(); !slices.Equal(got, []string{"1"}) {
		t.Errorf("handled: %q", got)
	}
	b.resumes(billing)
	for _, id := range []string{"2", "3", "4", "x"} {
		b.awaitOutcome(id, Handled)
	}
	got := slices.DeleteFunc(b.order(), func(id string) bool { return id == "x" })
	if !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("the key was handled in the order %q", got)
	}
	b.knows(in, false)
	b.receive(in, event("5", "k"), Handled)
}

// While no key is paused, nothing looks for one when an event comes from Kafka. So a node has to see a pause by itself, alone and in groups.
func TestPaused_ThePausedKeysOfAConsumerOfKafkaWait(t *testing.T) {
	for _, group := range []int{1, 64} {
		t.Run(fmt.Sprintf("groups of up to %d", group), func(t *testing.T) {
			b := setupKafka(t, 1)
			all := b.events(0, 100) // of five keys
			key := waiting.Pausable{Consumer: "billing", Topic: b.topic, Key: "0-2"}
			in := b.inbox(func(c *Config) { c.Group = group })
			in.Handle("order.placed", effectOf)
			b.consume(in)
			b.run(in.Run)
			b.produce(0, all[:20]...)
			b.awaitHandled(20)
			b.pauses(key)
			wait.Until(t, "the node knows of a paused key", func() bool {
				in.pauses.mu.Lock()
				defer in.pauses.mu.Unlock()
				return in.pauses.keys
			})
			b.produce(0, all[20:60]...)
			b.awaitHandled(20 + 32)
			wait.Until(t, "the key's events are stored", func() bool { return b.count("select count(*) from holdfast.stored") == 8 })
			if n := b.count("select count(*) from effect where key = '0-2'"); n != 4 {
				t.Errorf("%d events of the paused key were handled, want the 4 before the pause", n)
			}
			b.resumes(key)
			b.produce(0, all[60:]...)
			b.awaitHandled(100)
			b.inOrderAndOnce(100)
		})
	}
}

func TestPaused_WhatWasSeenOfPausesCountsForTwoSeconds(t *testing.T) {
	t.Parallel()
	ps := newPauses(&env{settings: settings{c: Config{Logger: slog.New(slog.DiscardHandler)}}})
	if ps.noKey() {
		t.Error("it knows before it has looked")
	}
	now := time.Now()
	for _, c := range []struct {
		keys bool
		at   time.Time
		want bool
	}{{false, now, true}, {true, now, false}, {false, now.Add(-pausesKnown), false}, {false, now, true}} {
		if ps.note(false, c.keys, c.at); ps.noKey() != c.want {
			t.Errorf("a look at %s found keys: %t; no key is paused: %t", c.at, c.keys, !c.want)
		}
	}
}

// A long queue of one key goes from one event to the next without a claim. A pause ends that.
func TestPaused_APauseEndsTheWorkOnAQueue(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Workers = 1 })
	var runs atomic.Int32
	stop := make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if runs.Add(1) == 3 {
			<-stop
		}
		return effectOf(ctx, tx, e)
	})
	b.storeMany(in, 20, "k")
	b.run(in.Run)
	wait.Until(t, "the third runs", func() bool { return runs.Load() == 3 })
	b.pauses(billing)
	b.knows(in, true)
	close(stop)
	wait.Until(t, "the third is handled, and no other one has a worker", func() bool {
		return b.count("select count(*) from effect") == 3 && b.count("select count(*) from holdfast.stored where lease_until > now()") == 0
	})
	if n := b.count("select count(*) from holdfast.stored where attempts = 0"); n != 17 {
		t.Errorf("%d events wait as if none had begun, want 17", n)
	}
	b.resumes(billing)
	wait.Until(t, "all are handled", func() bool { return b.count("select count(*) from effect") == 20 })
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint("k ", i))
	}
	if got := b.order(); !slices.Equal(got, want) {
		t.Errorf("handled in the order %q", got)
	}
}

// Whoever runs the loops must be able to see what is paused.
func TestPaused_ANodeWithoutTheRightToPausesSaysSo(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	pgtest.Exec(t, b.db, "alter table holdfast.pause rename to gone")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := in.Run(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("Run: %v", err)
	}
}

// A paused node claims nothing. Without an answer from elsewhere one lost connection would be an outage until it declares its types again.
func TestPaused_ALostConnectionIsNoOutageWhilePaused(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	b.pauses(billing)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.run(in.Run)
	b.knows(in, true)
	wait.Until(b, "its types are declared", func() bool { return b.count("select count(*) from holdfast.consumer_type") == 1 })
	in.vitals.lost(errors.New("the connection was lost"))
	if !wait.For(awayAfter, func() bool { return in.vitals.read().away == outage{} }) {
		t.Errorf("after %s it still says %v", awayAfter, in.Health(b.Context()).Reasons)
	}
}
