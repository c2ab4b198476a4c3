package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// past is a topic in memory with events, and a database whose consumers have seen none of them.
type past struct {
	*testing.T
	db     *pgtest.DB
	broker *sourcetest.Memory
}

func thePast(t *testing.T, perPartition ...int) *past {
	t.Helper()
	t.Parallel()
	p := &past{t, migrated.New(t), &sourcetest.Memory{}}
	pgtest.Exec(t, p.db, "create table effect (id text primary key)")
	p.broker.CreateTopic("orders", len(perPartition))
	for partition, n := range perPartition {
		p.produce(partition, n)
	}
	return p
}

// produce appends events, whose ids are partition, time and number.
func (p *past) produce(partition, n int) {
	for i := range n {
		p.broker.Produce("orders", partition, source.Record{Key: fmt.Appendf(nil, "k%d", i%3), Value: []byte("{}"), Headers: []source.Header{
			{Key: "ce_id", Value: fmt.Appendf(nil, "%d-%d-%d", partition, time.Now().UnixNano(), i)}, {Key: "ce_type", Value: []byte("order.placed")}}})
	}
}

// consumer is an inbox whose handler leaves a trace, after it has asked before.
func (p *past) consumer(before func(ctx context.Context, e holdfast.Event) error) *inbox.Inbox {
	p.Helper()
	in, err := inbox.New(p.db.Pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler), ImmediateRetries: -1, Retry: retry.Policy{Attempts: 1}})
	if err != nil {
		p.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if before != nil {
			if err := before(ctx, e); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "insert into effect values ($1)", e.ID)
		return err
	})
	return in
}

func (p *past) source() inbox.Source { return p.broker.Source("billing", "orders") }

func (p *past) effects() int64 { return pgtest.Count(p, p.db, "select count(*) from effect") }

// until runs ConsumeUntil within the limit of all waits.
func (p *past) until(in *inbox.Inbox, s inbox.Source, u inbox.Until) (inbox.Progress, error) {
	ctx, cancel := context.WithTimeout(p.Context(), wait.Limit())
	defer cancel()
	return in.ConsumeUntil(ctx, s, u)
}

// arrives wants ConsumeUntil to reach its bound with so many effects.
func (p *past) arrives(in *inbox.Inbox, s inbox.Source, u inbox.Until, effects int64) inbox.Progress {
	p.Helper()
	done, err := p.until(in, s, u)
	if err != nil || done.Left != 0 || done.TimeLeft != 0 {
		p.Fatalf("got %+v, %v", done, err)
	}
	if n := p.effects(); n != effects {
		p.Errorf("%d events were handled, want %d", n, effects)
	}
	return done
}

func TestBackfill_ANewConsumerCatchesUpAndReturns(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 40, 0, 25)
	var told []inbox.Progress
	in := p.consumer(nil)
	done := p.arrives(in, p.source(), inbox.Until{ProgressFunc: func(now inbox.Progress) { told = append(told, now) }}, 65)
	if done.Done != 65 || len(done.Partitions) != 3 || done.Partitions[2].Until != 25 || done.Partitions[2].Position != 25 || done.For <= 0 {
		t.Errorf("the progress is %+v", done)
	}
	if len(told) < 1 || told[len(told)-1].Left != 0 {
		t.Errorf("was told %+v", told)
	}
	if h := in.Health(t.Context()); h.Backfill == nil || h.Backfill.Done != 65 || !h.Live {
		t.Errorf("the health is %+v", h)
	}
	// What comes later is the next call's, and nothing is handled twice.
	p.produce(1, 5)
	if done := p.arrives(p.consumer(nil), p.source(), inbox.Until{}, 70); done.Done != 5 {
		t.Errorf("the second call did %d", done.Done)
	}
}

func TestBackfill_NothingAfterTheBoundIsHandled(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 30, 10)
	p.arrives(p.consumer(nil), p.source(), inbox.Until{Offsets: map[source.TopicPartition]int64{{Topic: "orders"}: 12}}, 12)
	if n := pgtest.Count(t, p.db, "select count(*) from holdfast.inbox where partition = 0 and \"offset\" >= 12 or partition = 1"); n != 0 {
		t.Errorf("%d events after the bound were taken in", n)
	}
	p.arrives(p.consumer(nil), p.source(), inbox.Until{Offsets: map[source.TopicPartition]int64{{Topic: "orders"}: 5, {Topic: "orders", Partition: 1}: 99}}, 22)
}

func TestBackfill_ATimeIsABound(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 20)
	old := time.Now().Add(time.Hour)
	p.broker.Produce("orders", 0, source.Record{Time: old, Value: []byte("{}"), Headers: []source.Header{{Key: "ce_id", Value: []byte("late")}, {Key: "ce_type", Value: []byte("order.placed")}}})
	p.arrives(p.consumer(nil), p.source(), inbox.Until{At: old}, 20)
	p.arrives(p.consumer(nil), p.source(), inbox.Until{At: old.Add(time.Second)}, 21)
}

// gappy is a source whose logs have a record in each third offset only, and none at the end.
type gappy struct{ inbox.Source }

func (g gappy) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	s, err := g.Source.Open(ctx, handover)
	return gappySession{s.(source.Bounded)}, err
}

type gappySession struct{ source.Bounded }

func (g gappySession) Next(ctx context.Context) (source.Generation, error) {
	gen, err := g.Bounded.Next(ctx)
	if err != nil {
		return nil, err
	}
	return gappyGeneration{gen}, nil
}

type gappyGeneration struct{ source.Generation }

func (g gappyGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	pg, err := g.Generation.Fetch(ctx, tp, offset, maxBytes)
	var kept []source.Record
	for _, r := range pg.Records {
		if r.Offset%3 == 0 {
			kept = append(kept, r)
		}
	}
	pg.Records = kept
	return pg, err
}

func TestBackfill_GapsAtTheEndDoNotKeepABoundWaiting(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	p := thePast(t, 30, 2)
	p.arrives(p.consumer(nil), gappy{p.source()}, inbox.Until{}, 11)
	for partition, want := range []int64{30, 2} {
		if n := pgtest.Count(t, p.db, "select position from holdfast.consumer_position where partition = $1", partition); n != want {
			t.Errorf("the position of partition %d is %d", partition, n)
		}
	}
}

func TestBackfill_DeletedRecordsDoNotKeepANewConsumerWaiting(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	p := thePast(t, 30, 10)
	p.broker.Delete("orders", 0, 20)
	p.broker.Delete("orders", 1, 10)
	done := p.arrives(p.consumer(nil), p.source(), inbox.Until{}, 10)
	if done.Done != 10 || done.Partitions[0].From != 20 {
		t.Errorf("the progress is %+v", done)
	}
	// All of what is asked for is gone.
	p.arrives(p.consumer(nil), p.source(), inbox.Until{Offsets: map[source.TopicPartition]int64{{Topic: "orders"}: 3}}, 10)
}

// A consumer that lost records is told, instead of waiting for a person for ever.
func TestBackfill_LostRecordsEndABackfillWithAnError(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	p := thePast(t, 10, 10)
	p.arrives(p.consumer(nil), p.source(), inbox.Until{Offsets: map[source.TopicPartition]int64{{Topic: "orders"}: 5}}, 5)
	p.produce(0, 10)
	p.broker.Delete("orders", 0, 12)
	done, err := p.until(p.consumer(nil), p.source(), inbox.Until{})
	if !errors.Is(err, inbox.ErrBoundNotReached) || !strings.Contains(err.Error(), "orders/0 is held: ") || !strings.Contains(err.Error(), "7 offsets were deleted") {
		t.Errorf("got %v", err)
	}
	if n := p.effects(); n != 15 || done.Partitions[0].Held == "" || done.Partitions[1].Position != 10 {
		t.Errorf("%d events, and the progress is %+v", n, done)
	}
}

// younger is a source whose last partition was not there when it was first asked.
type younger struct{ inbox.Source }

func (y younger) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	s, err := y.Source.Open(ctx, handover)
	return &youngerSession{Bounded: s.(source.Bounded)}, err
}

type youngerSession struct {
	source.Bounded
	asked bool
}

func (y *youngerSession) Extents(ctx context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	all, err := y.Bounded.Extents(ctx, at)
	if !y.asked {
		delete(all, source.TopicPartition{Topic: "orders", Partition: len(all) - 1})
	}
	y.asked = true
	return all, err
}

// A partition that is added while it runs is assigned, and is not part of the bound.
func TestBackfill_ANewPartitionIsNotPartOfTheBound(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 10, 7)
	if done := p.arrives(p.consumer(nil), younger{p.source()}, inbox.Until{}, 10); len(done.Partitions) != 1 {
		t.Errorf("the progress is %+v", done)
	}
	p.arrives(p.consumer(nil), p.source(), inbox.Until{}, 17)
}

// shrinking is a source whose log ends earlier than it first said.
type shrinking struct {
	inbox.Source
	more int64
}

func (s shrinking) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	session, err := s.Source.Open(ctx, handover)
	return &shrinkingSession{session.(source.Bounded), s.more}, err
}

type shrinkingSession struct {
	source.Bounded
	more int64
}

func (s *shrinkingSession) Extents(ctx context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	all, err := s.Bounded.Extents(ctx, at)
	for tp, x := range all {
		x.End, x.At = x.End+s.more, x.At+s.more
		all[tp] = x
	}
	s.more = 0
	return all, err
}

func TestBackfill_ALogThatIsCutShortMovesTheBound(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	p := thePast(t, 10)
	if done := p.arrives(p.consumer(nil), shrinking{p.source(), 100}, inbox.Until{}, 10); done.Partitions[0].Until != 10 {
		t.Errorf("the bound is %+v", done)
	}
}

// A call that ended early goes on where it was, and each event has one effect.
func TestBackfill_ABackfillIsResumedWhereItEnded(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	p := thePast(t, 200, 50)
	ctx, crash := context.WithCancel(t.Context())
	var mu sync.Mutex
	n := 0
	in := p.consumer(func(ctx context.Context, _ holdfast.Event) error {
		mu.Lock()
		if n++; n == 40 {
			crash()
		}
		late := n > 200
		mu.Unlock()
		if late { // However late it hears of the end, it does not get to all of them.
			<-ctx.Done()
		}
		return ctx.Err()
	})
	done, err := in.ConsumeUntil(ctx, p.source(), inbox.Until{})
	if !errors.Is(err, inbox.ErrBoundNotReached) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %+v, %v", done, err)
	}
	before := p.effects()
	if before < 40 || before == 250 {
		t.Fatalf("%d events were handled before it ended", before)
	}
	p.arrives(p.consumer(nil), p.source(), inbox.Until{}, 250)
}

func TestBackfill_ManyNodesReachABoundTogether(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	p := thePast(t, 60, 60, 60)
	var nodes sync.WaitGroup
	for range 3 {
		in := p.consumer(nil)
		nodes.Go(func() {
			if done, err := p.until(in, p.source(), inbox.Until{}); err != nil || done.Left != 0 {
				t.Errorf("got %+v, %v", done, err)
			}
		})
	}
	nodes.Wait()
	if n := p.effects(); n != 180 {
		t.Errorf("%d events were handled", n)
	}
}

// A failure is a dead letter, and keeps nobody waiting.
func TestBackfill_ABoundIsReachedPastDeadLetters(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 5)
	in := p.consumer(func(context.Context, holdfast.Event) error { return retry.Permanent(errors.New("no")) })
	p.arrives(in, p.source(), inbox.Until{}, 0)
	if n := pgtest.Count(t, p.db, "select count(*) from holdfast.letter"); n != 5 {
		t.Errorf("%d dead letters", n)
	}
}

// Two nodes catch up with a handler that fails for every event: what is stored stays within MaxStored, and nothing more is read until
// there is room.
func TestBackfill_ABackfillWaitsWhileTooManyEventsAreStored(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	const most, perPartition, nodes, workers = 20, 300, 2, 4
	p := thePast(t, perPartition, perPartition, perPartition)
	var repaired atomic.Bool
	var full, told sync.Map
	var running sync.WaitGroup
	for node := range nodes {
		in, err := inbox.New(p.db.Pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.DiscardHandler), ImmediateRetries: -1, MaxStored: most, Workers: workers,
			Retry:    retry.Policy{Attempts: 1_000_000, Base: 20 * time.Millisecond, Cap: 20 * time.Millisecond},
			Observer: inbox.Observer{OnFull: func(e holdfast.Event, _ error) { full.Store(e.ID, true) }}})
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			if !repaired.Load() {
				return errors.New("not yet")
			}
			_, err := tx.Exec(ctx, "insert into effect values ($1)", e.ID)
			return err
		})
		source := p.source()
		running.Go(func() {
			if done, err := p.until(in, source, inbox.Until{ProgressEvery: 100 * time.Millisecond, ProgressFunc: func(now inbox.Progress) {
				if strings.Contains(now.Waits, "MaxStored is 20") {
					told.Store(node, true)
				}
			}}); err != nil || done.Left != 0 || done.Waits != "" {
				t.Errorf("got %+v, %v", done, err)
			}
		})
	}
	size := func(m *sync.Map) (n int) {
		m.Range(func(any, any) bool { n++; return true })
		return n
	}
	wait.Until(t, "an event of each partition finds no room, and both nodes say so", func() bool { return size(&full) >= 3 && size(&told) == nodes })
	// The positions first: what they have passed is stored by then, and stays so.
	done, stored := pgtest.Count(t, p.db, "select sum(position) from holdfast.consumer_position"), pgtest.Count(t, p.db, "select count(*) from holdfast.stored")
	// A node counts every 3 s. Meanwhile another may store as many, and a count does not see what is being stored.
	if stored > nodes*(most+workers) || done > stored {
		t.Errorf("%d events are stored, and the positions add up to %d", stored, done)
	}
	repaired.Store(true)
	running.Wait()
	if n := p.effects(); n != 3*perPartition {
		t.Errorf("%d events were handled", n)
	}
}

func TestBackfill_ConsumeUntilNeedsABoundedSource(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	p := thePast(t, 1)
	in := p.consumer(nil)
	if _, err := in.ConsumeUntil(t.Context(), unbounded{p.source()}, inbox.Until{}); !errors.Is(err, inbox.ErrConfiguration) || !strings.Contains(err.Error(), "must be source.Bounded") {
		t.Errorf("got %v", err)
	}
	if _, err := in.ConsumeUntil(t.Context(), nil, inbox.Until{}); err == nil {
		t.Error("a nil source is no error")
	}
	if _, err := in.ConsumeUntil(t.Context(), p.source(), inbox.Until{ProgressEvery: -1}); err == nil {
		t.Error("a negative interval is no error")
	}
}

type unbounded struct{ inbox.Source }

func (u unbounded) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	s, err := u.Source.Open(ctx, handover)
	return struct{ source.Session }{s}, err
}
