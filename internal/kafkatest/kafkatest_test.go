package kafkatest_test

import (
	"context"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/kafkatest"
)

func TestARecordWrittenIsReadBackWithKeyAndHeaders(t *testing.T) {
	t.Parallel()
	c := kafkatest.InProcess(t)
	topic := c.Topic(t, 3)
	w := &kafka.Writer{Addr: kafka.TCP(c.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Balancer: &kafka.Hash{}, BatchSize: 1}
	defer w.Close()
	if err := w.WriteMessages(context.Background(),
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
