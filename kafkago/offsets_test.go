package kafkago_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/kafkago"
)

func TestOffsets_OffsetsAreWherePartitionsEnd(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	cluster := kafkatest.New(t)
	topic := cluster.Topic(t, 2)
	o, err := kafkago.NewOffsets(kafkago.Connection{Brokers: cluster.Brokers})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	zero, one := source.TopicPartition{Topic: topic, Partition: 0}, source.TopicPartition{Topic: topic, Partition: 1}
	w := &kafka.Writer{Addr: kafka.TCP(cluster.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, Balancer: kafka.BalancerFunc(func(kafka.Message, ...int) int { return 1 })}
	defer w.Close()
	if err := w.WriteMessages(t.Context(), kafka.Message{Value: []byte("a")}, kafka.Message{Value: []byte("b")}, kafka.Message{Value: []byte("c")}); err != nil {
		t.Fatal(err)
	}
	asked := []source.TopicPartition{zero, one, {Topic: topic, Partition: 7}, {Topic: topic + "-gone", Partition: 0}}
	got, err := o.Ends(t.Context(), asked)
	if want := map[source.TopicPartition]int64{zero: 0, one: 3}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, of := range [][]source.TopicPartition{nil, {{Topic: topic + "-gone", Partition: 0}}} {
		if got, err := o.Ends(t.Context(), of); err != nil || len(got) != 0 {
			t.Errorf("of %v: got %v, %v", of, got, err)
		}
	}
}

func TestOffsets_OffsetsNeedAConnectionThatCanWork(t *testing.T) {
	t.Parallel()
	_, err := kafkago.NewOffsets(kafkago.Connection{Brokers: []string{"nowhere"}, DialTimeout: -1})
	if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), "dial timeout") {
		t.Errorf("got %v", err)
	}
	o, err := kafkago.NewOffsets(kafkago.Connection{Brokers: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if got, err := o.Ends(t.Context(), []source.TopicPartition{{Topic: "orders"}}); err == nil {
		t.Errorf("no broker answers: got %v", got)
	}
}
