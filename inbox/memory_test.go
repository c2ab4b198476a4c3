package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// sized is a group whose partitions have the same log, and whose pages keep to their bytes. It counts the bytes that it has
// given and that are not settled.
type sized struct {
	*fakeGeneration
	partitions int
	given      bool
	large      func(offset, maxBytes int64) error // what a Fetch returns instead

	mu   sync.Mutex
	now  int64
	most int64
}

func (s *sized) Next(ctx context.Context) (source.Generation, error) {
	return giveOnce(ctx, &s.given, s)
}

func (s *sized) Close() {}

func (s *sized) Assigned() map[source.TopicPartition]source.Start {
	all := map[source.TopicPartition]source.Start{}
	for p := range s.partitions {
		all[source.TopicPartition{Topic: s.tp.Topic, Partition: p}] = source.Start{Committed: source.NoOffset}
	}
	return all
}

func (s *sized) Commit(context.Context, map[source.TopicPartition]int64) error { return nil }

func (s *sized) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if s.large != nil {
		if err := s.large(offset, maxBytes); err != nil {
			return source.Page{}, err
		}
	}
	pg := source.Page{Next: offset}
	for room := maxBytes; pg.Next < int64(len(s.log)); pg.Next++ {
		r := s.log[pg.Next]
		r.Headers = append([]source.Header(nil), r.Headers...)
		for i, h := range r.Headers { // The same event comes in each partition under another id.
			if h.Key == wire.HeaderID {
				r.Headers[i].Value = fmt.Append(nil, tp.Partition, "-", pg.Next)
			}
		}
		cost := readahead.RecordCost(&r)
		if cost > room && len(pg.Records) > 0 {
			break
		}
		if cost > room {
			r.Value, r.LeftOut = nil, cost
		} else {
			s.count(int64(len(r.Value)))
		}
		room -= cost
		pg.Records = append(pg.Records, r)
		if r.LeftOut > 0 {
			pg.Next++
			break
		}
	}
	if len(pg.Records) == 0 {
		<-ctx.Done()
		return source.Page{}, ctx.Err()
	}
	return pg, nil
}

func (s *sized) count(bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += bytes
	s.most = max(s.most, s.now)
}

func sizedLog(sizes ...int) []source.Record {
	events := make([]holdfast.Event, len(sizes))
	payload := bytes.Repeat([]byte{'x'}, 64<<20)
	for i, n := range sizes {
		events[i] = event(fmt.Sprint(i), fmt.Sprint("k", i%5))
		events[i].Payload = payload[:n]
	}
	return logOf(events...)
}

func TestMemory_EventsInMemoryKeepWithinTheBudget(t *testing.T) {
	mixed, medium := make([]int, 30), make([]int, 60)
	for i := range mixed {
		mixed[i] = []int{300, 100_000, 1 << 20, 3 << 20}[i%4]
	}
	for i := range medium {
		medium[i] = 100_000
	}
	for name, sizes := range map[string][]int{"of all sizes": mixed, "smaller than a page": medium} {
		t.Run(name, func(t *testing.T) { keepsWithinTheBudget(t, sizes) })
	}
}

func keepsWithinTheBudget(t *testing.T, sizes []int) {
	const budget, partitions = 16 << 20, 6
	b := setup(t)
	g := &sized{fakeGeneration: newFakeGeneration(sizedLog(sizes...)), partitions: partitions}
	in := b.inbox(func(c *Config) {
		c.MemoryBudget = budget
		received, left := c.Observer.OnReceive, sync.Map{}
		c.Observer.OnReceive = func(r Received) {
			if _, before := left.LoadOrStore(r.Event.ID, true); !before { // else it was stored, as events of a key are that wait for long
				g.count(-int64(len(r.Event.Payload)))
			}
			if received != nil {
				received(r)
			}
		}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := loop.Sleep(ctx, 2*time.Millisecond); err != nil { // sleep: events queue while others are handled
			return err
		}
		return effectOf(ctx, tx, e)
	})
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	for p := range partitions {
		b.awaitOutcome(fmt.Sprint(p, "-", len(sizes)-1), Handled)
	}
	b.await("all events", func(*observations) bool { g.mu.Lock(); defer g.mu.Unlock(); return g.now == 0 })
	stop()
	if g.most > budget || g.most < 2<<20 {
		t.Errorf("at one time %d bytes were in memory, the budget is %d", g.most, budget)
	}
	m := in.consumer.memory
	if !m.Room.TryAcquire(m.Bytes/8*5) || !m.Large.TryAcquire(m.Bytes/4) || m.Partitions.Load() != 0 {
		t.Errorf("a part of the budget was not given back, or of %d partitions", m.Partitions.Load())
	}
}

func TestMemory_AStoppedConsumerGivesItsWholeBudgetBack(t *testing.T) {
	b := setup(t)
	g := &sized{fakeGeneration: newFakeGeneration(sizedLog(300, 1<<20, 3<<20, 300, 300, 1<<20, 1<<20, 1<<20)), partitions: 3}
	in := b.inbox(func(c *Config) { c.MemoryBudget, c.StopTimeout = 16<<20, -1 })
	began := make(chan struct{}, 100)
	in.Handle("order.placed", func(ctx context.Context, _ pgx.Tx, _ holdfast.Event) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	for range 3 {
		<-began
	}
	stop()
	m := in.consumer.memory
	if !m.Room.TryAcquire(m.Bytes/8*5) || !m.Large.TryAcquire(m.Bytes/4) {
		t.Error("a part of the budget was not given back")
	}
}

// lateSource answers some fetches only when their partition has ended, as a broker may.
type lateSource struct {
	*sized
	late  func(maxBytes int64) bool
	asked chan struct{} // a fetch that will be late
}

func (s lateSource) Next(ctx context.Context) (source.Generation, error) {
	return giveOnce(ctx, &s.given, s)
}

func (s lateSource) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if s.late(maxBytes) {
		s.asked <- struct{}{}
		<-ctx.Done()
	}
	return s.sized.Fetch(context.WithoutCancel(ctx), tp, offset, maxBytes)
}

func TestMemory_APageThatComesAfterItsPartitionEndedGivesItsMemoryBack(t *testing.T) {
	const budget, partitions = 16 << 20, 2
	page := readahead.NewMemory(budget).Bytes / 8 / partitions
	for _, row := range []struct {
		name string
		size int
		late func(maxBytes int64) bool
	}{
		{"a page", 300, func(int64) bool { return true }},
		{"a page for one large event", 3 << 19, func(maxBytes int64) bool { return maxBytes > page }},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox(func(c *Config) { c.MemoryBudget = budget })
			in.Handle("order.placed", effectOf)
			source := lateSource{&sized{fakeGeneration: newFakeGeneration(sizedLog(row.size)), partitions: partitions}, row.late, make(chan struct{}, partitions)}
			stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, source) })
			for range partitions {
				<-source.asked
			}
			stop()
			m := in.consumer.memory
			if !m.Room.TryAcquire(m.Bytes/8*5) || !m.Large.TryAcquire(m.Bytes/4) {
				t.Error("a part of the budget was not given back")
			}
		})
	}
}

// Nothing is logged and nothing fails while a reader waits for memory: only Health can say that the partition stands still.
func TestMemory_HealthSaysWhichReaderHasWaitedLongForMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := newInbox(nil, Config{Consumer: "billing", MemoryBudget: 16 << 20}.withDefaults())
		in.vitals.begin(false)
		in.vitals.reached()
		m := in.consumer.memory
		m.Room.TryAcquire(m.Bytes / 8 * 5)
		var readers sync.WaitGroup
		read := func(number int) {
			p := in.consumer.newPartition(nil, newFakeGeneration(sizedLog(300)), source.TopicPartition{Topic: "orders", Partition: number}, source.Start{})
			readers.Go(func() {
				_, memory, err := p.fetch(t.Context(), 0)
				if memory.Give(); err != nil {
					t.Error(err)
				}
			})
		}
		read(7)
		time.Sleep(starvedAfter - time.Second)
		read(8)
		if !in.healthy() {
			t.Errorf("a reader has waited for %s: %v", starvedAfter-time.Second, in.Health(t.Context()).Reasons)
		}
		time.Sleep(time.Second)
		if h := in.Health(t.Context()); !in.says("partition 7 of orders has waited for memory for 1m0s") || len(h.Reasons) != 1 {
			t.Errorf("two readers have waited for memory, one of them for %s: %+v", starvedAfter, h)
		}
		m.Room.Release(m.Bytes / 8 * 5)
		readers.Wait()
		if !in.healthy() {
			t.Errorf("no reader waits any more: %v", in.Health(t.Context()).Reasons)
		}
	})
}

func TestMemory_ARecordOverAQuarterOfTheBudgetIsADeadLetter(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := &sized{fakeGeneration: newFakeGeneration(sizedLog(300, 5<<20, 300)), partitions: 1}
	in := b.inbox(func(c *Config) { c.MemoryBudget = 16 << 20 })
	in.Handle("order.placed", effectOf)
	stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
	b.awaitOutcome("0-0", Handled)
	b.awaitOutcome("0-1", Dead)
	b.awaitOutcome("0-2", Handled)
	stop()
	var reason, key, size string
	var payload []byte
	if err := b.db.QueryRow(t.Context(), "select reason, key, payload, headers ->> 'hf_value_left_out' from holdfast.letter").Scan(&reason, &key, &payload, &size); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"offset 1 of orders/0", size, "MemoryBudget (16777216)", "4194304", "in the topic only"} {
		if !strings.Contains(reason, part) {
			t.Errorf("the reason does not say %q: %s", part, reason)
		}
	}
	if key != "k1" || payload != nil || len(size) != 7 {
		t.Errorf("the letter has the key %s, a payload of %d bytes, and says %s bytes", key, len(payload), size)
	}
}

func TestMemory_ABatchThatCannotBeReadHoldsItsPartition(t *testing.T) {
	for name, row := range map[string]struct {
		needs int64 // 3 MiB more than are given, or 0 if no number helps
		asked int   // with different numbers of bytes
		says  []string
	}{
		"it needs more bytes": {3 << 20, 2, []string{"4194304 bytes may be used", "MemoryBudget (16777216)", "raise MemoryBudget to"}},
		"it cannot be read":   {0, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			g := &sized{fakeGeneration: newFakeGeneration(sizedLog(300, 300, 300)), partitions: 1}
			asked := map[int64]bool{}
			g.large = func(offset, maxBytes int64) error {
				if offset != 0 {
					return nil
				}
				asked[maxBytes] = true
				err := &source.TooLargeError{Needs: row.needs, Next: 2, Err: errors.New("it is one whole")}
				if row.needs > 0 {
					err.Needs += max(0, maxBytes-2<<20) * 3
				}
				return err
			}
			in := b.inbox(func(c *Config) { c.MemoryBudget = 16 << 20 })
			in.Handle("order.placed", effectOf)
			stop := b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, g) })
			why := b.awaitHeld().Error()
			for _, part := range append(row.says, "it is one whole", "next batch begins at offset 2", "set position = 2 where") {
				if !strings.Contains(why, part) {
					t.Errorf("it does not say %q: %s", part, why)
				}
			}
			if row.needs == 0 && strings.Contains(why, "MemoryBudget") {
				t.Errorf("more memory would not help: %s", why)
			}
			stop()
			if !asked[2<<20] || row.needs > 0 && !asked[row.needs] || len(asked) != row.asked {
				t.Errorf("it was asked for with %v bytes", asked)
			}
			if n := b.count("select count(*) from effect"); n != 0 {
				t.Errorf("%d events were handled", n)
			}
		})
	}
}
