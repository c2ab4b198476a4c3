package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// groupConfig is what these tests set of a kafkago.Connection and a kafkago.GroupConfig.
type groupConfig struct {
	Brokers                                          []string
	GroupID                                          string
	Topics                                           []string
	SessionTimeout, HeartbeatInterval, WatchInterval time.Duration
	ReadUncommitted, AdoptCommitted, SkipDeleted     bool
}

// kafkaGroup makes a group of package kafkago, which these tests cannot import, because it imports this package:
// kafkago_test.go, in another package, sets it.
var kafkaGroup func(groupConfig) Source

// kafkaBundle is a bundle with a topic.
type kafkaBundle struct {
	*bundle
	cluster *kafkatest.Cluster
	topic   string
	group   groupConfig
}

func setupKafka(t *testing.T, partitions int) *kafkaBundle {
	t.Helper()
	b := setup(t)
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, partitions)
	return &kafkaBundle{b, cluster, topic, groupConfig{
		Brokers: cluster.Brokers, GroupID: "group-of-" + topic, Topics: []string{topic},
		SessionTimeout: 20 * time.Second, HeartbeatInterval: 50 * time.Millisecond, WatchInterval: 50 * time.Millisecond,
	}}
}

func (b *kafkaBundle) produce(partition int, events ...holdfast.Event) {
	b.Helper()
	records := make([]kafka.Record, len(events))
	for i, e := range events {
		records[i] = kafka.Record{Value: kafka.NewBytes(e.Payload), Headers: wire.Headers([]kafka.Header(nil), e)}
		if e.Key != "" {
			records[i].Key = kafka.NewBytes([]byte(e.Key))
		}
	}
	b.produceRecords(partition, records...)
}

func (b *kafkaBundle) produceRecords(partition int, records ...kafka.Record) {
	b.Helper()
	res, err := b.cluster.Client.Produce(b.Context(), &kafka.ProduceRequest{
		Topic: b.topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
	})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (b *kafkaBundle) consume(in *Inbox) (stop func()) {
	return b.run(func(ctx context.Context) error { return in.Consume(ctx, kafkaGroup(b.group)) })
}

func (b *kafkaBundle) committed(partition int) int64 {
	b.Helper()
	res, err := b.cluster.Client.OffsetFetch(b.Context(), &kafka.OffsetFetchRequest{GroupID: b.group.GroupID, Topics: map[string][]int{b.topic: {partition}}})
	if err != nil {
		b.Fatal(err)
	}
	if len(res.Topics[b.topic]) == 0 { // nobody knows the group
		return source.NoOffset
	}
	return res.Topics[b.topic][0].CommittedOffset
}

func (b *kafkaBundle) events(partition, n int) []holdfast.Event {
	events := make([]holdfast.Event, n)
	for i := range events {
		events[i] = event(fmt.Sprintf("%d-%03d", partition, i), fmt.Sprintf("%d-%d", partition, i%5))
		events[i].Topic = b.topic
	}
	return events
}

func (b *kafkaBundle) awaitHandled(n int) {
	b.Helper()
	b.await(fmt.Sprintf("%d handled", n), func(o *observations) bool {
		handled := 0
		for _, outcomes := range o.outcomes {
			for _, out := range outcomes {
				if out == Handled {
					handled++
				}
			}
		}
		return handled >= n
	})
}

func (b *kafkaBundle) inOrder() {
	b.Helper()
	if n := b.count("select count(*) from (select id, lag(id) over (partition by key order by n) before from effect) x where before >= id"); n != 0 {
		b.Errorf("%d events overtook another of their key, or came twice", n)
	}
}

func TestConsume_ANewGroupHandlesEveryEventFromTheFirstInOrder(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setupKafka(t, 3)
	for p := range 3 {
		b.produce(p, b.events(p, 100)...)
	}
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consume(in)
	b.awaitHandled(300)
	stop()
	b.inOrder()
	for p := range 3 {
		if got := b.committed(p); got != 100 {
			t.Errorf("committed offset of partition %d is %d, want 100", p, got)
		}
	}
	if n := b.count("select count(*) from holdfast.consumer_position where position = 100 and clean"); n != 3 {
		t.Errorf("%d clean positions at 100, want 3", n)
	}
	if n := b.count(`select count(*) from holdfast.inbox where "offset" is not null and result = 'handled'`); n != 300 {
		t.Errorf("%d inbox rows with an offset, want 300", n)
	}
	if n := b.count("select count(*) from holdfast.start"); n != 0 {
		t.Errorf("%d starts were counted on the healthy path", n)
	}
}

func TestConsume_RedeliveredEventsAreDuplicatesWhenTheOffsetCommitWasLost(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 20)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consume(in)
	b.awaitHandled(20)
	stop()
	// The process had died after its handlers committed, and before their offsets were.
	b.resetOffsets(0, 5)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 5, clean = false")
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	stop = b.consume(again)
	b.await("15 duplicates", func(o *observations) bool { return len(o.outcomes["0-019"]) == 2 && len(o.outcomes["0-005"]) == 2 })
	stop()
	if n := b.count("select count(*) from effect"); n != 20 {
		t.Errorf("%d effects, want 20", n)
	}
	if b.observed.outcomes["0-005"][1] != Duplicate || len(b.observed.outcomes["0-004"]) != 1 {
		t.Error("the redelivery was not recognised, or began elsewhere")
	}
}

func (b *kafkaBundle) resetOffsets(partition int, offset int64) {
	b.Helper()
	res, err := b.cluster.Client.OffsetCommit(b.Context(), &kafka.OffsetCommitRequest{GroupID: b.group.GroupID, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{b.topic: {{Partition: partition, Offset: offset}}}})
	if err == nil {
		err = res.Topics[b.topic][0].Error
	}
	if err != nil {
		b.Fatal(err)
	}
}

func TestConsume_ReadingStartsAtThePositionIfTheGroupIsFurther(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 20)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consume(in)
	b.awaitHandled(20)
	stop()
	// Postgres was restored to an earlier moment; the group's offset stayed at 20.
	pgtest.Exec(t, b.db, `delete from effect where id >= '0-010'`)
	pgtest.Exec(t, b.db, `delete from holdfast.inbox where "offset" >= 10`)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 10")
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	stop = b.consume(again)
	b.awaitHandled(30)
	stop()
	if n := b.count("select count(distinct id) from effect"); n != 20 {
		t.Errorf("%d effects, want 20", n)
	}
	if b.observed.assigned[b.topic+"/0"] != 10 {
		t.Errorf("reading began at %d, want 10", b.observed.assigned[b.topic+"/0"])
	}
}

func TestConsume_AnEventBelowThePositionThatWasNeverHandledIsStaleAndKept(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 10)...)
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', $1, 0, 7)", b.topic)
	b.resetOffsets(0, 3)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	b.awaitHandled(3)
	for _, id := range []string{"0-003", "0-004", "0-005", "0-006"} { // keys run in parallel
		b.awaitOutcome(id, Stale)
	}
	if n := b.count("select count(*) from holdfast.letter where reason like 'stale%' and state = 'open'"); n != 4 {
		t.Errorf("%d letters, want 4", n)
	}
	if n := b.count("select count(*) from effect"); n != 3 {
		t.Errorf("%d effects, want 3", n)
	}
}

func TestConsume_ConsumeHoldsAPositionThatTheLogDoesNotHold(t *testing.T) {
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 10)...)
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', $1, 0, 11)", b.topic)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	if err := b.awaitHeld(); !errors.Is(err, source.ErrOffsetOutOfRange) || !strings.Contains(err.Error(), "its position is 11, but the log ends at 10") {
		t.Errorf("it is held because of %v", err)
	}
}

func TestConsume_APoisonedEventHoldsItsKeyAndNothingElseOfItsPartition(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 50)...)
	in := b.inbox(func(c *Config) {
		c.Retry = retry.Policy{Attempts: 5, Base: time.Millisecond, Cap: 5 * time.Millisecond}
	})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if e.ID == "0-003" {
			return errors.New("poison")
		}
		return effectOf(ctx, tx, e)
	})
	stop := b.consume(in)
	b.awaitHandled(49)
	b.awaitOutcome("0-003", Dead)
	stop()
	b.inOrder()
	if got := b.committed(0); got != 50 {
		t.Errorf("committed offset is %d, want 50", got)
	}
}

func TestConsume_EventsWithoutIdsAndForeignRecordsDoNoHarm(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setupKafka(t, 1)
	b.produceRecords(0,
		kafka.Record{Value: kafka.NewBytes([]byte("no id")), Headers: []kafka.Header{{Key: wire.HeaderType, Value: []byte("order.placed")}}},
		kafka.Record{Key: kafka.NewBytes([]byte("a")), Value: kafka.NewBytes([]byte("no headers"))},
		kafka.Record{Key: kafka.NewBytes([]byte("\xff\x00")), Value: kafka.NewBytes([]byte("not UTF-8")), Headers: []kafka.Header{
			{Key: wire.HeaderType, Value: []byte("order.placed")}, {Key: wire.HeaderID, Value: []byte(strings.Repeat("x", 300))}, {Key: "h", Value: []byte("\xfe")}}},
		kafka.Record{Headers: []kafka.Header{{Key: wire.HeaderType, Value: []byte("order.placed")}, {Key: wire.HeaderID, Value: []byte("last")}}},
	)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	b.awaitOutcome("last", Handled)
	id := kafkaID(b.topic, 0, 0)
	b.awaitOutcome(id, Handled)
	b.awaitOutcome(kafkaID(b.topic, 0, 1), Skipped)
	b.awaitOutcome(kafkaID(b.topic, 0, 2), Dead)
	if n := b.count("select count(*) from holdfast.letter where payload = 'not UTF-8' and reason like 'invalid record: id has 300 bytes%'"); n != 1 {
		t.Error("the record that cannot be stored has no letter")
	}
}

func TestConsume_TwoNodesHandPartitionsOverWithoutDuplicateEffects(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setupKafka(t, 4)
	const each = 60
	newNode := func() *Inbox {
		in := b.inbox()
		in.Handle("order.placed", effectOf)
		return in
	}
	var produced sync.WaitGroup
	for p := range 4 {
		produced.Go(func() {
			for _, e := range b.events(p, each) {
				b.produce(p, e)
			}
		})
	}
	stopFirst := b.consume(newNode())
	b.awaitHandled(20)
	stopSecond := b.consume(newNode())
	b.await("a revocation", func(o *observations) bool { return len(o.revoked) > 0 })
	b.awaitHandled(100)
	stopFirst()
	produced.Wait()
	b.awaitHandled(4 * each)
	stopSecond()
	b.inOrder()
	if n := b.count("select count(*) from effect"); n != 4*each {
		t.Errorf("%d effects, want %d", n, 4*each)
	}
}

func TestConsume_PartitionsThatAreAddedArePickedUp(t *testing.T) {
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 3)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	b.awaitHandled(3)
	res, err := b.cluster.Client.CreatePartitions(b.Context(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: b.topic, Count: 2}}})
	if err != nil || res.Errors[b.topic] != nil {
		t.Fatal(err, res.Errors)
	}
	b.await("the new partition", func(o *observations) bool { _, ok := o.assigned[b.topic+"/1"]; return ok })
	fresh := &kafka.Transport{}
	defer fresh.CloseIdleConnections()
	b.cluster = &kafkatest.Cluster{Brokers: b.cluster.Brokers, Client: &kafka.Client{Addr: b.cluster.Client.Addr, Transport: fresh}}
	b.produce(1, b.events(1, 3)...)
	b.awaitHandled(6)
}

func TestConsume_ATopicThatDoesNotExistYetKeepsNobodyFromReadingTheOthers(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setupKafka(t, 2)
	later := b.topic + "-later"
	b.group.Topics = []string{later, b.topic}
	b.produce(0, b.events(0, 3)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.consume(in)
	b.awaitHandled(3)
	if err := b.cluster.Server.CreateTopic(b.Context(), later, 1, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.cluster.Server.DeleteTopic(context.Background(), later) })
	events := b.events(1, 3)
	b.topic = later
	b.produce(0, events...)
	b.awaitHandled(6)
}

func TestConsume_AHandlerInHandFinishesWhenConsumeIsStopped(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 1)...)
	in := b.inbox()
	begun, finish := make(chan struct{}), make(chan struct{})
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		close(begun)
		<-finish
		return effectOf(ctx, tx, e)
	})
	stop := b.consume(in)
	<-begun
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(finish)
	<-stopped
	if b.effects("0-000") != 1 || b.committed(0) != 1 {
		t.Errorf("%d effects, committed %d; want 1 and 1", b.effects("0-000"), b.committed(0))
	}
}

func TestConsume_AStopRollsBackAHandlerThatDoesNotFinish(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 2)...)
	in := b.inbox(func(c *Config) { c.StopTimeout = 10 * time.Millisecond })
	begun := make(chan struct{})
	var once sync.Once
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if err := effectOf(ctx, tx, e); err != nil {
			return err
		}
		once.Do(func() { close(begun) })
		<-ctx.Done()
		return ctx.Err()
	})
	stop := b.consume(in)
	<-begun
	stop()
	if n := b.count("select (select count(*) from effect) + (select count(*) from holdfast.inbox) + (select count(*) from holdfast.stored)"); n != 0 {
		t.Error("what was in hand left a trace")
	}
	if n := b.count("select count(*) from holdfast.consumer_position where clean and position = 0"); n != 1 {
		t.Error("the position is not clean at 0")
	}
	again := b.inbox()
	var n atomic.Int64
	again.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		n.Add(1)
		return effectOf(ctx, tx, e)
	})
	b.consume(again)
	b.awaitHandled(2)
}
