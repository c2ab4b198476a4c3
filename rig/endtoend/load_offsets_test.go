package endtoend

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestLoadOffsets_OffsetsSetBackRepeatAndOffsetsSetForwardSkipNothing(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	back, late := int64(1000), 300
	if testing.Short() {
		back, late = 200, 60
	}
	run := func() (*outcomes, func()) {
		var o outcomes
		return &o, s.Consume("billing", endtoend.EffectOf("billing"), o.observe)
	}
	most := func(positions map[int]int64) (n int64) {
		for _, position := range positions {
			n += position
		}
		return n
	}

	// 1. A healthy start.
	first := s.some(int(back)*6/5, 50, "")
	s.publish(first...)
	o, stop := run()
	s.ends(stop).MustHold(t)
	positions := s.positions()

	// 2. Back by a thousand: what lies between is known, and what is new is handled. Some come again at the log's end
	// too, as a relay repeats them.
	to, again := map[int]int64{}, 0
	for partition, position := range positions {
		to[partition] = max(0, position-back)
		again += int(position - to[partition])
	}
	s.offsets(to)
	for _, err := range s.kafka.Publish(t.Context(), first[:late]) {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.publish(s.some(late, 50, "")...)
	again += late
	begun := time.Now()
	o, stop = run()
	s.Await("the new events have their effects", func() bool { return o.of(inbox.Handled) >= late })
	v := s.ends(stop)
	t.Logf("back: %d events again, %d of them at the log's end, in %v, outcomes %s; %s", again, late, time.Since(begun).Round(time.Millisecond), o, v)
	v.MustHold(t)
	if o.of(inbox.Duplicate) != again || o.of(inbox.Stale) != 0 || again < int(back) {
		t.Errorf("of %d events that came again %d were duplicates and %d stale", again, o.of(inbox.Duplicate), o.of(inbox.Stale))
	}

	// 3. Forward to the end of the log, past what nobody has handled: the position in Postgres goes before it.
	positions = s.positions()
	s.publish(s.some(late, 50, "")...)
	ends := s.logEnds()
	if most(ends) != most(positions)+int64(late) {
		t.Fatalf("the log ends at %v and the positions are %v: want %d events between", ends, positions, late)
	}
	s.offsets(ends)
	o, stop = run()
	v = s.ends(stop)
	t.Logf("forward: outcomes %s; %s", o, v)
	v.MustHold(t)
	if o.of(inbox.Handled) != late || o.of(inbox.Duplicate) != 0 {
		t.Errorf("%d of %d skipped events were handled, and %d were duplicates", o.of(inbox.Handled), late, o.of(inbox.Duplicate))
	}

	// 4. Behind the end: no position of this log. It is refused, and does as it says.
	beyond := s.logEnds()
	beyond[0] += 50
	s.offsets(beyond)
	err := s.refuses(s.consumer(endtoend.EffectOf("billing"), nil), s.group())
	if !errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), "reset the group's offset to") {
		t.Errorf("an offset past the log's end: %v", err)
	}
	s.offsets(s.positions())
	s.publish(s.some(20, 50, "")...)
	_, stop = run()
	v = s.ends(stop)
	t.Logf("after an offset past the end, %v, was fixed: %s", err, v)
	v.MustHold(t)
}

// logEnds is the end of each partition's log.
func (co *consumers) logEnds() map[int]int64 {
	co.Helper()
	var ask []kafka.OffsetRequest
	for partition := range co.partitions {
		ask = append(ask, kafka.LastOffsetOf(partition))
	}
	res, err := co.Cluster.Client.ListOffsets(co.Context(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{co.Topic(): ask}})
	if err != nil {
		co.Fatal(err)
	}
	ends := map[int]int64{}
	for _, p := range res.Topics[co.Topic()] {
		if p.Error != nil {
			co.Fatal(p.Error)
		}
		ends[p.Partition] = p.LastOffset
	}
	return ends
}

func TestLoadOffsets_RecordsDeletedUnhandledStopTheConsumerUntilSkipped(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	s := setupConsumers(t, 1)
	const half = 100
	s.publish(s.some(half, 10, "")...)
	stop := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.ends(stop).MustHold(t)

	// 1. What is handled may go.
	s.Cluster.DeleteRecords(t, s.Topic(), 0, half-10)
	s.publish(s.some(half, 10, "")...)
	var o outcomes
	stop = s.Consume("billing", endtoend.EffectOf("billing"), o.observe)
	s.Await("the second half has its effects", func() bool { return o.of(inbox.Handled) == half })
	stop()

	// 2. What is not handled is missed aloud, however often it is tried.
	s.publish(s.some(half, 10, "")...)
	s.Cluster.DeleteRecords(t, s.Topic(), 0, 2*half+30)
	for range 2 {
		err := s.refuses(s.consumer(endtoend.EffectOf("billing"), nil), s.group())
		if !errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), "30 offsets were deleted") || !strings.Contains(err.Error(), "SkipDeleted") {
			t.Errorf("30 records were deleted before they were handled: %v", err)
		}
		t.Logf("it says: %v", err)
	}
	if got := s.positions()[0]; got != 2*half {
		t.Errorf("the position is %d after the refusal, want %d", got, 2*half)
	}

	// 3. Told to, it goes on after the gap.
	g := s.group()
	g.SkipDeleted = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.consumeGroup(ctx, s.consumer(endtoend.EffectOf("billing"), nil), g) }()
	s.Await("what was not deleted has its effects", func() bool { return s.Count("select count(*) from effect") == 3*half-30 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("told to skip: %v", err)
	}

	// 4. Without the switch again: nothing is missing any more.
	s.publish(s.some(half, 10, "")...)
	stop = s.Consume("billing", endtoend.EffectOf("billing"), nil)
	s.Await("everything has its effects", func() bool { return s.Count("select count(*) from effect") == 4*half-30 })
	stop()
	v := s.Judge("billing")
	t.Log(v)
	if missing, lost := v.Count(oracle.Missing), v.Count(oracle.Lost); missing != 30 || lost != 2*half+30 {
		t.Errorf("%d events have no effect and %d are gone from Kafka, want the 30 that were deleted too early, and %d", missing, lost, 2*half+30)
	}
	v.Except(oracle.Missing, oracle.Lost).MustHold(t)
}

func TestLoadOffsets_ANodeThatFallsBehindRetentionWhileItRunsStopsAloud(t *testing.T) {
	t.Parallel()
	s := setupConsumers(t, 1)
	// Its first event holds it: with large records it fetches no more than it may hold.
	var holds, open atomic.Bool
	handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		holds.Store(true)
		for !open.Load() && after(ctx, 10*time.Millisecond) {
		}
		return endtoend.PutEffect(ctx, tx, "billing", e)
	}
	large := func(n int) (events []holdfast.Event) {
		for range n {
			e := s.next("k", "")
			e.Payload = make([]byte, 900<<10)
			rand.NewChaCha8([32]byte{1}).Read(e.Payload)
			events = append(events, e)
		}
		return events
	}
	s.publish(large(30)...)
	in := s.consumer(handler, nil)
	err := s.holds(func(ctx context.Context) error { return s.consumeGroup(ctx, in, s.group()) }, func() {
		s.Await("a handler holds the partition", holds.Load)
		s.Cluster.DeleteRecords(t, s.Topic(), 0, s.logEnds()[0])
		open.Store(true)
	})
	if !errors.Is(err, source.ErrOffsetOutOfRange) {
		t.Errorf("it is held because of %v", err)
	}
	t.Logf("it says: %v", err)
	done := s.Count("select count(*) from effect")
	if position := s.positions()[0]; position != done || done == 30 {
		t.Errorf("%d of 30 events were handled, and the position is %d", done, position)
	}
	t.Logf("%d of 30 events had been fetched and were handled", done)
}

func TestLoadOffsets_PartitionsThatAreAddedAreReadFromTheirFirstRecord(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	const few, many = 2, 6
	s := setupConsumers(t, few)
	keys := 40
	lasting := 4 * time.Second
	if testing.Short() {
		lasting = time.Second
	}
	stops := []func(){s.Consume("billing", endtoend.EffectOf("billing"), nil), s.Consume("billing", endtoend.EffectOf("billing"), nil)}

	// 1. Under way, and not drained: old and new events of a key that moves may pass each other.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := s.flow(ctx, 150, s.any(keys, ""))
	s.Await("events flow", func() bool { return s.Count("select count(*) from effect") > 100 })
	res, err := s.Cluster.Client.CreatePartitions(t.Context(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: s.Topic(), Count: many}}})
	if err == nil {
		err = res.Errors[s.Topic()]
	}
	if err != nil {
		t.Fatal(err)
	}
	added := time.Now()
	s.mu.Lock()
	s.partitions = many
	s.mu.Unlock()
	s.Await("an event of a new partition has its effect", func() bool {
		return s.Count(`select count(*) from effect join holdfast.inbox i on i.event_id = effect.id where i.partition >= $1`, few) > 0
	})
	pickedUp := time.Since(added)
	after(ctx, lasting)
	cancel()
	wait()
	s.Arrive("billing")
	v := s.Judge("billing")
	// The order that holds: a key's events of one partition. s counts what of it is broken.
	const overtaken = `select count(*) from (select w.number, lag(w.number) over (partition by e.key, i.partition order by e.n) before
		from effect e join written w using (id) join holdfast.inbox i on i.event_id = e.id) x where before >= number`
	if n := s.Count(overtaken); n != 0 {
		t.Errorf("%d effects overtook another of their key and partition", n)
	}
	t.Logf("the first event of a new partition was handled %v after it was added; %d keys moved, %d effects of theirs came out of order; %s",
		pickedUp.Round(time.Millisecond), v.Count(oracle.Strayed), v.Count(oracle.OutOfTurn), s.delays("true"))
	v.Except(oracle.Strayed, oracle.Overtaken, oracle.OutOfTurn).MustHold(t)
	if limit := 2*s.group().WatchInterval + 15*time.Second; pickedUp > limit {
		t.Errorf("the new partitions were picked up after %v, want at most %v", pickedUp, limit)
	}

	// 2. Drained first: then the order holds for every key, moved or not.
	last := s.Count("select coalesce(max(n), 0) from effect")
	s.publish(s.some(200, keys, "")...)
	s.Arrive("billing")
	for _, stop := range stops {
		stop()
	}
	const order = `select count(*) from (select w.number, e.n, lag(w.number) over (partition by e.key order by e.n) before
		from effect e join written w using (id)) x where before >= number and n > $1`
	if n := s.Count(order, last); n != 0 {
		t.Errorf("%d effects overtook another of their key though the topic was drained before", n)
	}
	if n := pgtest.Count(t, s.Db, "select count(*) from effect"); n != s.Count("select count(*) from written") {
		t.Errorf("%d effects of %d events", n, s.Count("select count(*) from written"))
	}
}
