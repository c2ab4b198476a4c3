package franz

import (
	"bytes"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

// promisesOf are those of a publisher, and of one that reaches no broker. read reads a topic, partition by partition.
func promisesOf(cluster *kafkatest.Cluster, k, unreachable relay.Publisher, read func(testing.TB, *kafkatest.Cluster, string) []kafkatest.Record) publishertest.Options {
	return publishertest.Options{
		Publisher: k,
		Topic: func(t testing.TB, partitions int) string {
			return cluster.Topic(t, partitions, "max.message.bytes", "100000")
		},
		Read: func(t testing.TB, topic string) (all []publishertest.Stored) {
			for _, r := range read(t, cluster, topic) {
				all = append(all, publishertest.Stored{Partition: r.Partition, Record: publish.Record{Key: r.Key, Value: r.Value, Headers: headersAs[publish.Header](r.Headers)}})
			}
			return all
		},
		Refuse: func(e holdfast.Event) holdfast.Event {
			e.Payload = bytes.Repeat([]byte("x"), 200_000)
			return e
		},
		Missing:     "missing",
		Unreachable: unreachable,
	}
}

func TestConformance_ThePublisherKeepsThePromises(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.ProducerBatchCompression(kgo.NoCompression())), PublisherConfig{MetadataTTL: 100 * time.Millisecond})
		away := publisherOn(t, clientOf(t, []string{"127.0.0.1:1"}), PublisherConfig{ProduceTimeout: 2 * time.Second})
		o := promisesOf(cluster, k, away, func(t testing.TB, cluster *kafkatest.Cluster, topic string) []kafkatest.Record {
			return cluster.ReadAll(t, topic)
		})
		o.Bound = 40 * time.Second // ProduceTimeout for the topics, the batch that is open, and the next one, on a busy machine
		publishertest.Run(t, o)
	})
}

func TestConformance_TheGroupKeepsThePromises(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		sourcetest.Run(t, sourcetest.Options{
			Source: func(t testing.TB, group string, topics ...string) inbox.Source {
				return groupOn(t, cluster, GroupConfig{GroupID: group, Topics: topics})
			},
			Topic: func(t testing.TB, partitions int) string { return cluster.Topic(t, partitions) },
			Produce: func(t testing.TB, topic string, partition int, records ...source.Record) {
				produceRecords(t, cluster, topic, partition, records)
			},
			Delete: func(t testing.TB, topic string, partition int, before int64) {
				cluster.DeleteRecords(t, topic, partition, before)
			},
		})
	})
}

func groupOn(t testing.TB, cluster *kafkatest.Cluster, c GroupConfig) *Group {
	t.Helper()
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = 100 * time.Millisecond
	}
	g, err := NewGroup([]kgo.Opt{kgo.SeedBrokers(cluster.Brokers...)}, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// produceRecords writes records until the broker takes them: it refuses a new topic for a moment.
func produceRecords(t testing.TB, cluster *kafkatest.Cluster, topic string, partition int, records []source.Record) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		all := make([]kafka.Record, len(records))
		for i, r := range records {
			if r.Key != nil {
				all[i].Key = kafka.NewBytes(r.Key)
			}
			if r.Value != nil {
				all[i].Value = kafka.NewBytes(r.Value)
			}
			for _, h := range r.Headers {
				all[i].Headers = append(all[i].Headers, kafka.Header(h))
			}
		}
		res, err := cluster.Client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(all...)})
		if err == nil {
			err = res.Error
		}
		switch {
		case err == nil:
			return
		case time.Now().After(end):
			t.Fatal(err)
		}
	}
}

func TestConformance_ABinaryKeyGoesWhereItsBytesGo(t *testing.T) {
	e := holdfast.Event{ID: "1", Key: "data:;base64,AAAAAAAAACo="}
	if got, want := Murmur2(e, 7), murmur2.Partition("\x00\x00\x00\x00\x00\x00\x00\x2a", 7); got != want {
		t.Errorf("partition %d, want %d", got, want)
	}
}
