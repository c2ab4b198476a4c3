package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestHotKey_WhichKeyIsHot(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	queue := func(key string, events, bytes int, ago time.Duration, kind jobKind) *keyQueue {
		line := &keyQueue{}
		for range events {
			e := event("e", key)
			e.Payload = []byte(strings.Repeat("x", bytes))
			line.waiting = append(line.waiting, &job{ds: []*delivery{{e: e}}, kind: kind, readAt: now.Add(-ago)})
		}
		return line
	}
	for _, row := range []struct {
		name  string
		lines []*keyQueue
		want  string // its key
	}{
		{"none waits", []*keyQueue{queue("a", 0, 0, time.Hour, jobAlone)}, ""},
		{"few wait", []*keyQueue{queue("a", 9, 0, time.Hour, jobAlone)}, ""},
		{"many wait", []*keyQueue{queue("a", 9, 0, time.Hour, jobAlone), queue("b", 10, 0, time.Second, jobAlone)}, "b"},
		{"more wait of another", []*keyQueue{queue("a", 11, 0, time.Second, jobAlone), queue("b", 10, 0, time.Second, jobAlone)}, "a"},
		{"few large ones wait", []*keyQueue{queue("a", 2, 50, time.Second, jobAlone), queue("b", 0, 0, 0, jobAlone)}, "a"},
		{"few smaller ones wait", []*keyQueue{queue("a", 2, 49, time.Second, jobAlone)}, ""},
		{"they come quickly", []*keyQueue{queue("a", 20, 0, time.Second-1, jobAlone)}, ""},
		{"they come in batches", []*keyQueue{queue("a", 20, 0, time.Hour, jobBatch)}, ""},
		{"they come one by one after a failure", []*keyQueue{queue("a", 20, 0, time.Hour, jobApart)}, ""},
	} {
		l := newScheduler(1)
		for i, line := range row.lines {
			l.keys[fmt.Sprint(i)] = line
		}
		got := ""
		if j := l.hottest(10, 100, now.Add(-time.Second)); j != nil {
			got = j.ds[0].e.Key
		}
		if got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	l := newScheduler(1)
	l.keys["a"] = queue("a", 20, 0, time.Hour, jobAlone)
	l.keys["a"].waiting[0].intake = &intake{}
	if l.hottest(10, 100, now) != nil {
		t.Error("an event is stored that is to be stored already")
	}
}

func TestHotKey_OtherKeysWait(t *testing.T) {
	t.Parallel()
	hot, other := &delivery{e: event("1", "hot")}, &delivery{e: event("2", "")}
	if otherKey([]*delivery{hot, hot}, "hot") || !otherKey([]*delivery{hot, other}, "hot") {
		t.Error("an event without a key is one of another key, and those of the key are not")
	}
}

// While the handler of a hot key's first event runs, nothing settles that would let the reader look: it has to look by itself.
func TestHotKey_AHotKeyIsNoticedWhileNothingSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := newInbox(nil, Config{Consumer: "billing", MaxStored: -1, MaxStoredKey: -1}.withDefaults())
		p := in.consumer.newPartition(newWorkerPool(in.receiver), nil, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p.reading, p.track = ctx, readahead.NewTracker(0)
		for i := range int64(readahead.MaxAhead) {
			p.track.Begin(i, 1, readahead.Reservation{}, 0)
			p.dispatch(&job{owner: p, ctx: ctx, stop: ctx.Done(), ds: []*delivery{{e: event(fmt.Sprint(i), "hot"), from: &origin{offset: i}}}, first: "order.placed"})
		}
		ended := make(chan bool)
		go func() { ended <- p.awaitCapacity(ctx, []*delivery{{e: event("other", "other")}}) }()
		noticed := func() bool {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.scheduler.keys["hot"].waiting[0].intake != nil
		}
		time.Sleep(hotAfter - 1)
		if noticed() {
			t.Errorf("its next event is to be stored before it has waited for %s", hotAfter)
		}
		time.Sleep(hotEvery)
		if !noticed() {
			t.Errorf("its next event has waited for %s, and is not to be stored", hotAfter+hotEvery)
		}
		cancel()
		if <-ended {
			t.Error("more may begin in a partition that is full")
		}
	})
}

// The other keys of a partition do not wait until a hot key with a slow handler has made room: what of it waits is stored, in its order.
func TestHotKey_AHotKeyThatIsSlowIsStored(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	const hot, cold = readahead.MaxAhead + 500, 40
	var hotHandled, coldHandled, before atomic.Int64
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "key hot" {
			if coldHandled.Load() < cold {
				if err := loop.Sleep(ctx, 20*time.Millisecond); err != nil {
					return err
				}
			}
			hotHandled.Add(1)
		} else if coldHandled.Add(1) == 1 {
			before.Store(hotHandled.Load())
		}
		return effectOf(ctx, tx, e)
	})
	log := keyed(hot+cold, cold)
	for i := range hot {
		log[i].Key = "key hot"
	}
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(hot + cold)
	b.nothingStored()
	b.inOrderAndOnce(hot + cold)
	// Before, no other began until the hot key had room for it.
	if n := before.Load(); n > hot-readahead.MaxAhead {
		t.Errorf("the first event of another key came after %d of the hot key", n)
	} else {
		t.Logf("the first event of another key came after %d of %d of the hot key", n, hot)
	}
}

// Stored events take longer. A key that holds up no other is handled from the log.
func TestHotKey_AKeyWithAPartitionOfItsOwnIsNotStored(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	const n = readahead.MaxAhead + 200
	in := b.inbox()
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := loop.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
		return effectOf(ctx, tx, e)
	})
	b.consumeFake(in, newFakeGeneration(logOf(keyed(n, 1)...)))
	b.awaitSettled(n)
	b.inOrderAndOnce(n)
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	for id, outcomes := range b.observed.outcomes {
		if len(outcomes) != 1 || outcomes[0] != Handled {
			t.Fatalf("the outcomes of event %s are %v", id, outcomes)
		}
	}
}

// A hot key is not stored where its quota would hold the partition.
func TestHotKey_AHotKeyIsNotStoredBeyondItsQuota(t *testing.T) {
	for _, row := range []struct {
		name            string
		most, mostOfOne int
		stored          int
		roomy           bool
	}{
		{"there is no limit", -1, -1, 0, true},
		{"there is room", 2000, 2 * readahead.MaxAhead, 10, true},
		{"the key may have too few", 2000, 2*readahead.MaxAhead - 1, 10, false},
		{"too many are stored", 2000, -1, 2001 - readahead.MaxAhead, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.MaxStored, c.MaxStoredKey = row.most, row.mostOfOne })
			pgtest.Exec(t, b.db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash)
				select 'billing', 'orders', 'k' || n, n, '', n::text, 'order.placed', now(), '' from generate_series(1, $1::int) n`, row.stored)
			if got := in.receiver.queues.quota.roomy(t.Context(), readahead.MaxAhead); got != row.roomy {
				t.Errorf("roomy says %v, want %v", got, row.roomy)
			}
		})
	}
}

// One event whose handler takes long does not stop its partition after readahead.MaxAhead others.
func TestHotKey_ASlowEventHoldsUpNoOtherKeyForThousands(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	const others = 3 * readahead.MaxAhead
	var handled atomic.Int64
	all := make(chan struct{})
	in := b.inbox(func(c *Config) { c.Timeout = 5 * time.Minute })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.Key == "slow" {
			select {
			case <-all:
			case <-ctx.Done():
				return ctx.Err()
			}
		} else if handled.Add(1) == others {
			close(all)
		}
		return nil
	})
	log := keyed(others+1, 50)
	log[0].Key = "slow"
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(others + 1)
}
