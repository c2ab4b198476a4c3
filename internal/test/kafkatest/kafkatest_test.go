package kafkatest_test

import (
	"os"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

func roundTrip(t *testing.T, c *kafkatest.Cluster) {
	t.Helper()
	topic := c.Topic(t, 3)
	w := &kafka.Writer{
		Addr: kafka.TCP(c.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		Balancer: &kafka.Hash{}, BatchSize: 1, Transport: c.Client.Transport,
	}
	defer w.Close()
	if err := w.WriteMessages(t.Context(),
		kafka.Message{Key: []byte("k"), Value: []byte("v1"), Headers: []kafka.Header{{Key: "h", Value: []byte("x")}}},
		kafka.Message{Key: []byte("k"), Value: []byte("v2")},
	); err != nil {
		t.Fatal(err)
	}
	got := c.ReadAll(t, topic)
	if len(got) != 2 || string(got[0].Value) != "v1" || string(got[1].Value) != "v2" || string(got[0].Key) != "k" {
		t.Fatalf("read back %+v", got)
	}
	if h, ok := got[0].Header("h"); !ok || h != "x" {
		t.Errorf("header h is %q, %v", h, ok)
	}
}

func TestKafkaTest_ARecordWrittenIsReadBackFromTheImitation(t *testing.T) {
	t.Parallel()
	roundTrip(t, kafkatest.InProcess(t))
}

func TestKafkaTest_ARecordWrittenIsReadBackFromTheBestKafkaThereIs(t *testing.T) {
	t.Parallel()
	c := kafkatest.New(t)
	t.Logf("it is %s", c.Kind)
	roundTrip(t, c)
}

func TestKafkaTest_ContainerIsTheRealOneAndIsSharedWithNew(t *testing.T) {
	t.Parallel()
	c := kafkatest.Container(t)
	if c.Kind != kafkatest.KindContainer {
		t.Errorf("it is %s", c.Kind)
	}
	if other := kafkatest.New(t); os.Getenv("HOLDFAST_TEST_KAFKA_BROKERS") == "" && !slices.Equal(other.Brokers, c.Brokers) {
		t.Errorf("two containers run, at %v and %v", c.Brokers, other.Brokers)
	}
}

func TestKafkaTest_ATopicIsGoneWhenItsTestEnds(t *testing.T) {
	t.Parallel()
	c := kafkatest.InProcess(t)
	var topic string
	t.Run("a test", func(t *testing.T) { topic = c.Topic(t, 1) })
	if _, err := c.Server.ReadAll(t.Context(), topic); err == nil {
		t.Errorf("topic %s is still there", topic)
	}
}

func TestKafkaTest_ATopicTakesItsConfigs(t *testing.T) {
	t.Parallel()
	c := kafkatest.InProcess(t)
	topic := c.Topic(t, 1, "max.message.bytes", "1000")
	w := &kafka.Writer{Addr: kafka.TCP(c.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchSize: 1, MaxAttempts: 1}
	defer w.Close()
	if err := w.WriteMessages(t.Context(), kafka.Message{Value: make([]byte, 2000)}); err == nil {
		t.Error("a record over the topic's limit was taken")
	}
}

// Not parallel: one broker at a time is enough for a small machine.
func TestKafkaTest_ABrokerOfOnesOwnTakesSettings(t *testing.T) {
	skip.InShort(t, "it takes 18 s beside the others")
	c := kafkatest.Own(t, "message.max.bytes", "20000")
	topic := c.Topic(t, 1)
	w := &kafka.Writer{
		Addr: kafka.TCP(c.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll,
		BatchSize: 1, MaxAttempts: 1, Transport: c.Client.Transport,
	}
	defer w.Close()
	if err := w.WriteMessages(t.Context(), kafka.Message{Value: make([]byte, 30000)}); err == nil {
		t.Error("a record over the broker's limit was taken")
	}
}
