package migrations

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	watermillkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// saramaHash is the Partitioner of examples/quickstart.
func saramaHash(e holdfast.Event, partitions int) int {
	hash := fnv.New32a()
	hash.Write([]byte(e.Key))
	partition := int(int32(hash.Sum32()) % int32(partitions))
	return max(partition, -partition)
}

func TestWatermill_SaramaHashIsTheChoiceOfSarama(t *testing.T) {
	t.Parallel()
	its := sarama.NewHashPartitioner("orders")
	choice := func(key string, partitions int) (int32, error) {
		return its.Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(key)}, int32(partitions))
	}
	// The places that the test of examples/quickstart knows by heart.
	for key, want := range map[string][3]int32{"customer-17": {2, 8, 26}, "a": {0, 0, 26}, "order/4711": {2, 11, 5}, "ключ": {2, 11, 33}} {
		for i, partitions := range []int{3, 12, 50} {
			if got, err := choice(key, partitions); got != want[i] || err != nil {
				t.Errorf("sarama puts %q on %d of %d partitions, want %d, %v", key, got, partitions, want[i], err)
			}
		}
	}
	for range 1000 {
		key, partitions := watermill.NewUUID(), 1+rand.IntN(50)
		want, err := choice(key, partitions)
		if got := saramaHash(holdfast.Event{Key: key}, partitions); err != nil || got != int(want) {
			t.Fatalf("%q is on %d of %d partitions, sarama's choice is %d, %v", key, got, partitions, want, err)
		}
	}
}

// intoWatermill publishes to the forwarder's table in the service's transaction.
func intoWatermill(_ context.Context, tx pgx.Tx, e holdfast.Event) error {
	table, err := watermillsql.NewPublisher(watermillsql.TxFromPgx(tx), watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	m := message.NewMessage(e.ID, e.Payload)
	m.Metadata.Set("key", e.Key)
	m.Metadata.Set("type", e.Type)
	return forwarder.NewPublisher(table, forwarder.PublisherConfig{}).Publish(e.Topic, m)
}

// withIdentity is what the guide asks of the forwarder before the switch: the headers that an inbox reads.
type withIdentity struct {
	watermillkafka.MarshalerUnmarshaler
}

func (w withIdentity) Marshal(topic string, m *message.Message) (*sarama.ProducerMessage, error) {
	record, err := w.MarshalerUnmarshaler.Marshal(topic, m)
	if err == nil {
		record.Headers = append(record.Headers, sarama.RecordHeader{Key: []byte("ce_id"), Value: []byte(m.UUID)},
			sarama.RecordHeader{Key: []byte("ce_type"), Value: []byte(m.Metadata.Get("type"))})
	}
	return record, err
}

// forward runs Watermill's forwarder.
func (s *service) forward() (stop func()) {
	s.Helper()
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(s.Pool(4)), watermillsql.SubscriberConfig{SchemaAdapter: watermillsql.DefaultPostgreSQLSchema{},
		OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true, PollInterval: 5 * time.Millisecond, RetryInterval: 50 * time.Millisecond}, watermill.NopLogger{})
	if err != nil {
		s.Fatal(err)
	}
	config := watermillkafka.DefaultSaramaSyncPublisherConfig()
	config.Producer.RequiredAcks = sarama.WaitForAll
	keyed := watermillkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) { return m.Metadata.Get("key"), nil })
	publisher, err := watermillkafka.NewPublisher(watermillkafka.PublisherConfig{Brokers: s.Cluster.Brokers, Marshaler: withIdentity{keyed}, OverwriteSaramaConfig: config}, watermill.NopLogger{})
	if err != nil {
		s.Fatal(err)
	}
	f, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{})
	if err != nil {
		s.Fatal(err)
	}
	return s.Run("forwarder", func(ctx context.Context) error {
		ended := make(chan error, 1)
		go func() { ended <- f.Run(context.Background()) }()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
		}
		_ = f.Close()
		if err := <-ended; err != nil {
			return err
		}
		return publisher.Close()
	})
}

func TestWatermill_WatermillsForwarderIsReplacedWhileItRuns(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	s := setup(t, pgtest.New(t), "watermill")
	s.lockFirst = true // otherwise Watermill publishes the events of a key in another order than they were committed
	stopForwarder := s.forward()
	s.Await("the forwarder has made its tables", func() bool {
		return s.Count("select count(*) from pg_class where relname in ('watermill_forwarder_topic', 'watermill_offsets_forwarder_topic') and relkind = 'r'") == 2
	})
	consumer := s.Consume("billing", endtoend.EffectOf("billing"), nil)
	stopService := s.write(intoWatermill)
	s.goesOn("the forwarder publishes")

	s.run("mapping.sql")
	s.checks(`insert into watermill_forwarder_topic (uuid, payload, metadata, transaction_id)
		values ('u', '{"destination_topic": "orders", "uuid": "u", "payload": "e30=", "metadata": {"type": "changed"}}', '{}', pg_current_xact_id())`,
		"the metadata has no key: the event would have no order")

	// Both relays run through the switch, and the forwarder for long after it.
	stopRelay := s.relay(saramaHash)
	s.run("switch.sql")
	s.goesOn("holdfast publishes")
	stopDirect := s.write(direct)
	s.goesOn("holdfast publishes what changed services write")

	// Back, and there again.
	stopDirect()
	stopForwarder()
	s.run("rollback.sql")
	s.awaitPublished()
	stopRelay()
	stopForwarder = s.forward()
	s.goesOn("the forwarder publishes again")
	stopRelay = s.relay(saramaHash)
	s.run("switch.sql")
	stopDirect = s.write(direct)
	s.goesOn("holdfast publishes again")

	stopService()
	stopForwarder()
	s.run("finish.sql")
	s.goesOn("holdfast publishes without the tables")
	stopDirect()
	v := s.Finish([]func(){stopRelay}, []func(){consumer}, "billing")
	t.Log(v)
	v.MustHold(t)
	s.nothingTwice()
}
