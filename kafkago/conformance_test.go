package kafkago

import (
	"bytes"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/inbox/sourcetest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

func TestConformance_ThePublisherKeepsThePromises(t *testing.T) {
	publisherKeepsThePromises(t, func(p relay.Publisher) relay.Publisher { return p })
}

func TestConformance_ThePublisherWithMiddlewareKeepsThePromises(t *testing.T) {
	publisherKeepsThePromises(t, func(p relay.Publisher) relay.Publisher {
		return publish.Wrap(p, func(next publish.Func) publish.Func { return next })
	})
}

func publisherKeepsThePromises(t *testing.T, with func(relay.Publisher) relay.Publisher) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		away, err := NewPublisher(Connection{Brokers: []string{"127.0.0.1:1"}}, PublisherConfig{})
		if err != nil {
			t.Fatal(err)
		}
		publishertest.Run(t, publishertest.Options{
			Publisher: with(clusterPublisher(t, cluster.Brokers, PublisherConfig{Compression: -1})),
			Topic: func(t testing.TB, partitions int) string {
				return cluster.Topic(t, partitions, "max.message.bytes", "100000")
			},
			Read: func(t testing.TB, topic string) []publishertest.Stored {
				var all []publishertest.Stored
				for _, r := range cluster.ReadAll(t, topic) {
					headers := make([]publish.Header, len(r.Headers))
					for i, h := range r.Headers {
						headers[i] = publish.Header(h)
					}
					all = append(all, publishertest.Stored{Partition: r.Partition, Record: publish.Record{Key: r.Key, Value: r.Value, Headers: headers}})
				}
				return all
			},
			Refuse: func(e holdfast.Event) holdfast.Event {
				e.Payload = bytes.Repeat([]byte("x"), 200_000)
				return e
			},
			Missing:     "missing",
			Unreachable: with(away),
			Bound:       20 * time.Second, // ProduceTimeout for the topics, and once more for the batches
		})
	})
}

func TestConformance_TheGroupKeepsThePromises(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		sourcetest.Run(t, sourcetest.Options{
			Source: func(t testing.TB, group string, topics ...string) inbox.Source {
				g, err := NewGroup(Connection{Brokers: cluster.Brokers}, GroupConfig{GroupID: group, Topics: topics,
					SessionTimeout: 6 * time.Second, HeartbeatInterval: 100 * time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				return g
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
