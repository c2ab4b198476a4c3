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
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Eight workers had eight events in memory, however large, and nothing counted them.
func TestStoredMemory_StoredEventsInMemoryKeepWithinTheirShare(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	const budget, share = 16 << 20, 2 << 20
	in := b.inbox(func(c *Config) { c.MemoryBudget = budget })
	var mu sync.Mutex
	now, most, together, busiest := 0, 0, 0, 0
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		count := func(events int) {
			mu.Lock()
			defer mu.Unlock()
			now, together = now+events*len(e.Payload), together+events
			busiest = max(busiest, together)
			if len(e.Payload) <= share || together > 1 {
				most = max(most, now)
			}
		}
		count(1)
		defer count(-1)
		if err := loop.Sleep(ctx, 30*time.Millisecond); err != nil { // sleep: handlers run side by side if they may
			return err
		}
		return effectOf(ctx, tx, e)
	})
	store := func(id, key string, size int) {
		e := event(id, key)
		e.Payload = make([]byte, size)
		for i := range e.Payload {
			e.Payload[i] = byte(i * i)
		}
		b.store(in, e)
	}
	var ids []string
	for i := range 16 {
		ids = append(ids, fmt.Sprint("other ", i))
		store(ids[i], fmt.Sprint("k", i), []int{900_000, 100, 300_000, 3 << 20}[i%4])
	}
	for i := range 12 { // a small one of each key, then a large one that follows it
		ids = append(ids, fmt.Sprint("queued ", i))
		store(ids[16+i], fmt.Sprint("queue ", i%6), []int{100, 1_500_000}[i/6])
	}
	stop := b.run(in.Run)
	for _, id := range ids {
		b.awaitOutcome(id, Handled)
	}
	stop()
	if most > share || busiest < 2 {
		t.Errorf("at one time %d bytes were in memory, the share is %d; %d handlers ran side by side", most, share, busiest)
	}
	if m := in.claims.memory; m.used != 0 {
		t.Errorf("%d bytes are counted when all is handled", m.used)
	}
}

// An event may be larger than what is free though most of the memory is. It must not wait for the next poll when that has become free.
func TestStoredMemory_AnEventThatWasTooLargeIsClaimedWhenThereIsRoom(t *testing.T) {
	b := setup(t)
	claimed := make(chan struct{}, 100)
	in := b.inbox(func(c *Config) {
		c.MemoryBudget = 16 << 20 // The stored events have 2 MiB of it, and each counts twice.
		c.PollMin, c.PollMax, c.Retry.Base, c.Retry.Cap = time.Hour, time.Hour, time.Hour, time.Hour
		c.Observer.OnPolled = func(int, time.Duration) { claimed <- struct{}{} }
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "small" {
			for range 2 { // The second claim is made beside this event, and leaves the other.
				<-claimed
			}
			return errors.New("not yet") // It is stored anew: no event is handled, and none stored, whose end would wake the next claim.
		}
		return nil
	})
	large := event("large", "other")
	large.Payload = []byte(strings.Repeat("x", 5<<18))
	other := b.inbox() // so that the one under test hears of nothing that is stored
	other.Handle("order.placed", effectOf)
	b.store(other, event("small", "key"))
	b.store(other, large)
	stop := b.run(in.Run)
	b.awaitOutcome("large", Handled)
	stop()
}

func TestStoredMemory_AClaimTakesAsManyEventsAsThereIsMemoryFor(t *testing.T) {
	m := newStoredMemory(100_000, 1)
	want := func(bytes int64, alone bool) {
		t.Helper()
		if b, a := m.room(); b != bytes || a != alone {
			t.Errorf("there is room for %d bytes, alone: %v; want %d, %v", b, a, bytes, alone)
		}
	}
	of := func(bytes int) *claimed {
		s := &claimed{e: holdfast.Event{Payload: make([]byte, bytes-256)}}
		m.reserve(s)
		return s
	}
	want(50_000, true)
	small := of(300)
	want((100_000-leastStored)/2, false)
	half := of(30_000)
	want((40_000-leastStored)/2, false)
	if half.next() != 30_000 || small.next() != leastStored {
		t.Errorf("the next may have %d and %d bytes", half.next(), small.next())
	}
	if !m.give(half) {
		t.Error("nobody is told that a claim may find more")
	}
	if m.give(small) {
		t.Error("no claim was made since one was repeated, and it is repeated again")
	}
	large := of(70_000)
	want(0, false)
	m.give(large)
	m.give(large)
	want(50_000, true)

	// An event of 60,000 bytes is left while a small one is in memory, though most of it is free; beside it a claim of one type asks.
	small = of(300)
	want((100_000-leastStored)/2, false)
	if !m.give(small) {
		t.Error("nobody is told that a claim may find more, though one may have left what is larger than what was free")
	}
	large = of(49_000)
	want(1000, false)
	other := of(300)
	m.give(large)
	want((100_000-leastStored)/2, false)
	if !m.give(other) {
		t.Error("a later claim, which had more room, has forgotten what an earlier one may have left")
	}
	want(50_000, true)
	small = of(300)
	if m.give(small) {
		t.Error("a claim is repeated that found all memory free: whatever its first event is, it takes it")
	}
	if got := newStoredMemory(1, 1000).bytes; got != 2*1000*leastStored {
		t.Errorf("a thousand workers have %d bytes", got)
	}
}
