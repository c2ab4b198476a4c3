//go:build unix

package franz

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

// longEnough is how long a test waits for what must happen. It shows nothing of how quick something is.
const longEnough = 5 * time.Minute

// laneOf is a lane's producer as a publisher of its own.
type laneOf struct {
	*TransactionalPublisher
	lane publish.LaneProducer
}

func (l laneOf) Publish(ctx context.Context, events []holdfast.Event) []error {
	return l.lane.Publish(ctx, events)
}

func transactional(t testing.TB, cluster *kafkatest.Cluster, c TransactionalConfig) *TransactionalPublisher {
	t.Helper()
	k, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers(cluster.Brokers...), kgo.ProducerBatchCompression(kgo.NoCompression())}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func marksTopic(t testing.TB, cluster *kafkatest.Cluster) string {
	return cluster.Topic(t, 8, "cleanup.policy", "compact")
}

func newID() string { return "shop-" + strings.ToLower(rand.Text()) }

// committed reads what a consumer of committed records finds in a topic, partition by partition. It ends at records of its own, so nothing
// that was begun before is left out.
func committed(t testing.TB, cluster *kafkatest.Cluster, topic string) (records []kafkatest.Record) {
	t.Helper()
	return readAt(t, cluster, topic, kgo.ReadCommitted())
}

// readAt is committed for readers of an isolation level.
func readAt(t testing.TB, cluster *kafkatest.Cluster, topic string, level kgo.IsolationLevel) (records []kafkatest.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	writer := clientOf(t, cluster.Brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	meta, err := describe(ctx, writer, []string{topic})
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	for p := range meta[topic].leaders {
		r, err := writer.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: int32(p), Key: []byte("the end")}).First()
		if err != nil {
			t.Fatal(err)
		}
		left[int32(p)] = r.Offset
	}
	reader := clientOf(t, cluster.Brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(level))
	at := map[int32][]kafkatest.Record{}
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("the records of %s have no end in %v: partitions are left at %v", topic, longEnough, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset == end {
				delete(left, r.Partition)
			} else if string(r.Key) != "the end" {
				at[r.Partition] = append(at[r.Partition], recordOf(r))
			}
		})
	}
	for p := range meta[topic].leaders {
		records = append(records, at[int32(p)]...)
	}
	return records
}

func TestTransactional_LanesOfTransactionsKeepThePromisesOfAPublisher(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		marks := marksTopic(t, cluster)
		k := transactional(t, cluster, TransactionalConfig{TransactionalID: newID(), MarksTopic: marks, MetadataTTL: 100 * time.Millisecond})
		lane := k.OpenLane("holdfast", 0, 1)
		away := transactional(t, &kafkatest.Cluster{Brokers: []string{"127.0.0.1:1"}}, TransactionalConfig{TransactionalID: newID(), MarksTopic: marks, ProduceTimeout: 2 * time.Second})
		nowhere := away.OpenLane("holdfast", 0, 1)
		t.Cleanup(func() { lane.Close(); nowhere.Close() })
		o := promisesOf(cluster, laneOf{k, lane}, laneOf{away, nowhere}, committed)
		o.Bound = 2 * time.Minute // of three transactions, on a busy machine
		publishertest.Run(t, o)
	})
}

// shop is a database with an outbox, and the topics that its relays publish to.
type shop struct {
	db      *pgtest.DB
	cluster *kafkatest.Cluster
	topic   string
	order   processOrder
	written int // events of each key
}

const shopKeys = 30

func newShop(t *testing.T) *shop {
	t.Helper()
	skip.InShort(t, "a real Kafka takes ten seconds to start, and processes run on it")
	return shopOn(t, kafkatest.Container(t), migrated.New(t))
}

func shopOn(t *testing.T, cluster *kafkatest.Cluster, db *pgtest.DB) *shop {
	t.Helper()
	return &shop{db: db, cluster: cluster, topic: cluster.Topic(t, 3),
		order: processOrder{DSN: db.DSN, Brokers: cluster.Brokers, ID: newID(), Marks: marksTopic(t, cluster)}}
}

// write writes so many events for every key, each round in a transaction.
func (s *shop) write(t *testing.T, rounds int) {
	t.Helper()
	for range rounds {
		if err := s.writeRound(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *shop) writeRound(ctx context.Context) error {
	var events []holdfast.Event
	for key := range shopKeys {
		events = append(events, holdfast.Event{Topic: s.topic, Source: "shop", Type: "counted", ID: fmt.Sprintf("%02d/%04d", key, s.written), Key: fmt.Sprint("k", key), Payload: []byte("x")})
	}
	tx, err := s.db.Pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if err := outbox.Write(ctx, tx, events...); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.written++
	return nil
}

// relay starts a relay, which is to get a signal at a step; "" for none.
func (s *shop) relay(t *testing.T, step string, turn int64, stop bool) *process {
	t.Helper()
	o := s.order
	o.Step, o.Turn, o.Stop = step, turn, stop
	return startProcess(t, o)
}

// settle waits until every cursor in Postgres is past all that is written.
func (s *shop) settle(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(longEnough); ; {
		unread, parked := int64(0), pgtest.Count(t, s.db.Pool, `select count(*) from holdfast.parked`)
		unread = pgtest.Count(t, s.db.Pool, `select count(*) from holdfast.event e join holdfast.lane l on l.lane = e.lane
			where not pg_visible_in_snapshot(e.xid, l.done::pg_snapshot) and (l.upto is null or not pg_visible_in_snapshot(e.xid, l.upto::pg_snapshot) or e.seq > l.pos)`)
		if unread+parked == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d events are not published in %v, and %d are parked", unread, longEnough, parked)
		}
		time.Sleep(20 * time.Millisecond) // sleep: between two looks
	}
}

// check asks a reader of committed records: every event once, and every key in order.
func (s *shop) check(t *testing.T) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]string{}
	for _, r := range committed(t, s.cluster, s.topic) {
		e := parsed(t, s.topic, r)
		if seen[e.ID] {
			t.Errorf("%s is there twice", e.ID)
		}
		if e.ID <= last[e.Key] {
			t.Errorf("key %s: %s came after %s", e.Key, e.ID, last[e.Key])
		}
		seen[e.ID], last[e.Key] = true, e.ID
	}
	if want := shopKeys * s.written; len(seen) != want {
		t.Errorf("there are %d events, want %d", len(seen), want)
	}
}

// A relay is killed at each step, and another takes its lanes.
func TestTransactional_AKilledRelayRepeatsNothingForReadersOfCommittedRecords(t *testing.T) {
	for _, step := range []struct {
		name string
		turn int64
	}{{stepFencing, 3}, {stepFenced, 3}, {stepOwned, 5}, {stepBegun, 9}, {stepProduced, 1}, {stepProduced, 12}, {stepCommit, 1}, {stepCommit, 12}, {stepAnswered, 12}, {stepSaved, 2}} {
		t.Run(fmt.Sprintf("%s %d", step.name, step.turn), func(t *testing.T) {
			s := newShop(t)
			s.write(t, 20)
			s.relay(t, step.name, step.turn, false).waitAt(t)
			s.write(t, 5)
			next := s.relay(t, "", 0, false)
			s.settle(t)
			next.stop(t)
			s.check(t)
		})
	}
}

// A relay freezes at a step for longer than its lease, and goes on when another has its lanes and has published.
func TestTransactional_AFrozenRelayThatGoesOnIsFenced(t *testing.T) {
	for _, step := range []struct {
		name string
		turn int64
	}{{stepFencing, 2}, {stepOwned, 4}, {stepProduced, 9}, {stepAnswered, 9}} {
		t.Run(step.name, func(t *testing.T) {
			s := newShop(t)
			s.write(t, 20)
			frozen := s.relay(t, step.name, step.turn, true)
			frozen.waitAt(t)
			other := s.relay(t, "", 0, false)
			s.settle(t)
			s.write(t, 5)
			if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			s.write(t, 10)
			s.settle(t)
			frozen.stop(t)
			s.write(t, 2)
			s.settle(t)
			other.stop(t)
			s.check(t)
		})
	}
}

// Relays come, go in order and are killed while events are written.
func TestTransactional_RelaysThatExchangeLanesRepeatNothing(t *testing.T) {
	s := newShop(t)
	s.write(t, 10)
	relays := []*process{s.relay(t, "", 0, false)}
	for n := range 4 {
		next := s.relay(t, "", 0, false) // takes half of the lanes
		s.write(t, 10)
		if n%2 == 0 {
			relays[0].stop(t)
		} else if err := relays[0].cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		relays = []*process{next}
		s.write(t, 10)
	}
	s.settle(t)
	relays[0].stop(t)
	s.check(t)
}
