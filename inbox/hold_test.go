package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestHold_AnOffsetOutOfRangeHoldsItsPartitionOnly(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 9)")
	var log bytes.Buffer
	in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	in.Handle("order.placed", effectOf)
	stop := b.run(func(ctx context.Context) error {
		in.registry.start()
		return in.consume(ctx, newManyPartitions(logOf(eventsOf("0-", 3)...), logOf(eventsOf("1-", 20)...)))
	})
	why := b.awaitHeld()
	if !errors.Is(why, source.ErrOffsetOutOfRange) || !strings.Contains(why.Error(), "its position is 9, but the log ends at 3") {
		t.Errorf("it is held because of %v", why)
	}
	for i := range 20 {
		b.awaitOutcome(fmt.Sprintf("1-%d", i), Handled)
	}
	wait.Until(t, "status says why", func() bool {
		return b.count("select count(*) from holdfast.consumer_position where partition = 0 and held like '%its position is 9%'") == 1
	})
	// What the error says, and nobody starts anything again.
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 1 where partition = 0")
	for i := range 3 {
		b.awaitOutcome(fmt.Sprintf("0-%d", i), map[bool]Outcome{true: Stale, false: Handled}[i == 0])
	}
	if n := b.count("select count(*) from holdfast.consumer_position where held is not null"); n != 0 {
		t.Error("it still says that the partition is held")
	}
	stop()
	if !strings.Contains(log.String(), `level=ERROR msg="partition is held: its offset is out of range"`) {
		t.Errorf("the log says %s", log.String())
	}
}

func TestHold_AnOffsetThatGoesWhileItIsReadHoldsItsPartition(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	log := logOf(eventsOf("", 3)...)
	g, next := newFakeGeneration(log), newFakeGeneration(log)
	gone := fmt.Errorf("%w: deleted", source.ErrOffsetOutOfRange)
	g.fail.Store(&gone)
	g.from, g.ends = 1, []int64{3, 0, 0, 0, 0, 0, 0} // It is there when the partition is assigned.
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 1)")
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consumeFake(in, g, next)
	if why := b.awaitHeld(); !errors.Is(why, source.ErrOffsetOutOfRange) || !strings.Contains(why.Error(), "its position is 1, but the log ends at 0") {
		t.Errorf("it is held because of %v", why)
	}
	// A person sets it lower than this node has it: it must not be raised again.
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 0")
	for i := range 3 {
		b.awaitOutcome(fmt.Sprint(i), Handled)
	}
	b.awaitSettled(3)
	stop()
	if n := b.count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters: the position was raised over events that nobody handled", n)
	}
}

func TestHold_DeletedRecordsAreSkippedWhereThatIsAsked(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	g := &shortened{fakeGeneration: newFakeGeneration(logOf(eventsOf("", 6)...)), skip: true}
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.run(func(ctx context.Context) error {
		in.registry.start()
		return in.consume(ctx, g)
	})
	b.awaitOutcome("4", Handled)
	b.awaitOutcome("5", Handled)
	b.awaitSettled(6)
	stop()
	if n := b.count("select count(*) from effect"); n != 3 || b.effects("0") != 1 {
		t.Errorf("%d effects, want those of the first and of what was not deleted", n)
	}
}

// shortened loses its records 1 to 3 after the first page.
type shortened struct {
	*fakeGeneration
	skip  bool
	first int64
	given bool
}

func (s *shortened) Next(ctx context.Context) (source.Generation, error) {
	return giveOnce(ctx, &s.given, s)
}
func (s *shortened) Close() {}

func (s *shortened) Assigned() map[source.TopicPartition]source.Start {
	return map[source.TopicPartition]source.Start{s.tp: {Committed: source.NoOffset, SkipDeleted: s.skip}}
}

func (s *shortened) Bounds(ctx context.Context, tp source.TopicPartition) (int64, int64, error) {
	_, end, err := s.fakeGeneration.Bounds(ctx, tp)
	return s.first, end, err
}

func (s *shortened) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	switch {
	case offset == 0:
		return source.Page{Records: s.log[:1], Next: 1}, nil
	case offset < 4:
		s.first = 4
		return source.Page{}, fmt.Errorf("%w: deleted", source.ErrOffsetOutOfRange)
	}
	return s.fakeGeneration.Fetch(ctx, tp, offset, maxBytes)
}

// A broker that comes back as the leader has the log that another one did not have yet. ConsumeUntil would wait for a person otherwise.
func TestHold_AHoldThatEndsByItselfIsNotSaidAnyMore(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	events := eventsOf("", 3)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consumeFake(in, newFakeGeneration(logOf(events[0])))
	b.awaitSettled(1)
	stop()
	g := &lapsed{fakeGeneration: newFakeGeneration(logOf(events...))}
	g.from, g.ends = 1, []int64{3, 0} // It is there when the partition is assigned, and after the first look.
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	b.run(func(ctx context.Context) error {
		again.registry.start()
		return again.consume(ctx, g)
	})
	if why := b.awaitHeld(); !errors.Is(why, source.ErrOffsetOutOfRange) {
		t.Errorf("it is held because of %v", why)
	}
	b.awaitSettled(3)
	if n := b.count("select count(*) from holdfast.consumer_position where held is not null"); n != 0 {
		t.Error("it still says that the partition is held")
	}
}

// lapsed does not have its second record when it is asked for it first.
type lapsed struct {
	*fakeGeneration
	given, lapsed bool
}

func (l *lapsed) Next(ctx context.Context) (source.Generation, error) {
	return giveOnce(ctx, &l.given, l)
}
func (l *lapsed) Close() {}

func (l *lapsed) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if offset == 1 && !l.lapsed {
		l.lapsed = true
		return source.Page{}, fmt.Errorf("%w: another leader", source.ErrOffsetOutOfRange)
	}
	return l.fakeGeneration.Fetch(ctx, tp, offset, maxBytes)
}
