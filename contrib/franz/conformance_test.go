package franz

import (
	"bytes"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publishertest"
)

func TestThePublisherKeepsThePromises(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		publishertest.Run(t, publishertest.Options{
			Publisher: publisherOn(t, clientOf(t, cluster.Brokers, kgo.ProducerBatchCompression(kgo.NoCompression())), PublisherConfig{MetadataTTL: 100 * time.Millisecond}),
			Topic: func(t testing.TB, partitions int) string {
				return cluster.Topic(t, partitions, "max.message.bytes", "100000")
			},
			Read: func(t testing.TB, topic string) []publishertest.Stored {
				var all []publishertest.Stored
				for _, r := range cluster.ReadAll(t, topic) {
					headers := make([]relay.Header, len(r.Headers))
					for i, h := range r.Headers {
						headers[i] = relay.Header(h)
					}
					all = append(all, publishertest.Stored{Partition: r.Partition, Record: relay.Record{Key: r.Key, Value: r.Value, Headers: headers}})
				}
				return all
			},
			Refuse: func(e holdfast.Event) holdfast.Event {
				e.Payload = bytes.Repeat([]byte("x"), 200_000)
				return e
			},
			Missing:     "missing",
			Unreachable: publisherOn(t, clientOf(t, []string{"127.0.0.1:1"}), PublisherConfig{ProduceTimeout: 2 * time.Second}),
			Bound:       40 * time.Second, // ProduceTimeout for the topics, the batch that is open, and the next one, on a busy machine
		})
	})
}
