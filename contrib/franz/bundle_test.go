package franz

import (
	"os"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }

// eachCluster runs a test against the imitation of Kafka, and against the real one.
func eachCluster(t *testing.T, test func(t *testing.T, cluster *kafkatest.Cluster)) {
	t.Parallel()
	t.Run("in-process", func(t *testing.T) {
		t.Parallel()
		test(t, kafkatest.InProcess(t))
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		skip.InShort(t, "a real Kafka takes ten seconds to start")
		test(t, kafkatest.Container(t))
	})
}

// clientOf is a client of some brokers, with more options.
func clientOf(t testing.TB, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func publisherOn(t testing.TB, client *kgo.Client, c PublisherConfig) *Publisher {
	t.Helper()
	k, err := NewPublisher(client, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// publishAll publishes until everything is acknowledged, as a lane does. A broker refuses a new topic for a moment.
func publishAll(t testing.TB, k *Publisher, events []holdfast.Event) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; {
		var left []holdfast.Event
		var last error
		for i, err := range k.Publish(t.Context(), events) {
			if err == nil {
				continue
			}
			if last = err; FaultOf(err) == publish.FaultRecord {
				t.Fatalf("event %d: %v", i, err)
			}
			left = append(left, events[i])
		}
		if events = left; len(events) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal(last)
		}
	}
}

// headersAs are headers as another package has them.
func headersAs[To, From ~struct {
	Key   string
	Value []byte
}](headers []From) []To {
	all := make([]To, len(headers))
	for i, h := range headers {
		all[i] = To(h)
	}
	return all
}

// recordOf is a record as package kafkatest has it.
func recordOf(r *kgo.Record) kafkatest.Record {
	return kafkatest.Record{Partition: int(r.Partition), Key: r.Key, Value: r.Value, Time: r.Timestamp, Headers: headersAs[kafka.Header](r.Headers)}
}

// parsed reads a record back as the inbox does.
func parsed(t testing.TB, topic string, r kafkatest.Record) holdfast.Event {
	t.Helper()
	e, err := wire.Parse(topic, r.Key, r.Value, headersAs[wire.Header](r.Headers), r.Time)
	if err != nil {
		t.Fatal(err)
	}
	return e
}
