package kafkaserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

func inProcess(t *testing.T, opts ...kfake.Opt) *kafkaserver.Server {
	t.Helper()
	s, err := kafkaserver.InProcess(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func create(t *testing.T, s *kafkaserver.Server, topic string, partitions int, configs map[string]string) {
	t.Helper()
	if err := s.CreateTopic(t.Context(), topic, partitions, configs); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, s *kafkaserver.Server, topic string, messages ...kafka.Message) error {
	t.Helper()
	w := writer(s, topic)
	defer w.Close()
	w.MaxAttempts = 1
	return cause(w.WriteMessages(t.Context(), messages...))
}

func TestInProcess_ItListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, address := range inProcess(t).Brokers {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !net.ParseIP(host).IsLoopback() {
			t.Errorf("broker at %s: %v", address, err)
		}
	}
}

func TestInProcess_ReadAllReturnsEveryPartitionInOffsetOrder(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	create(t, s, "many", 4, nil)
	const each = 500
	perKey := map[string]int{}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		messages := make([]kafka.Message, each)
		for i := range messages {
			messages[i] = kafka.Message{
				Key: []byte(key), Value: []byte(fmt.Sprint(i)),
				Headers: []kafka.Header{{Key: "id", Value: []byte(key)}, {Key: "id", Value: []byte("second")}},
			}
		}
		w := writer(s, "many")
		w.BatchSize, w.BatchTimeout = 37, time.Millisecond
		if err := w.WriteMessages(t.Context(), messages...); err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
	records, err := s.ReadAll(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if i > 0 && (r.Partition < records[i-1].Partition || r.Partition == records[i-1].Partition && r.Offset != records[i-1].Offset+1) {
			t.Fatalf("record %d is %d/%d after %d/%d", i, r.Partition, r.Offset, records[i-1].Partition, records[i-1].Offset)
		}
		if got := string(r.Value); got != fmt.Sprint(perKey[string(r.Key)]) {
			t.Fatalf("key %s has value %s where %d was due", r.Key, got, perKey[string(r.Key)])
		}
		if id, _ := r.Header("id"); id != string(r.Key) {
			t.Fatalf("header id of key %s is %q", r.Key, id)
		}
		perKey[string(r.Key)]++
	}
	if len(records) != 5*each {
		t.Errorf("%d records, want %d", len(records), 5*each)
	}
}

func TestInProcess_ReadAllTellsATombstoneAndAMissingKeyFromEmptyOnes(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	create(t, s, "nil", 1, nil)
	err := write(t, s, "nil", kafka.Message{Key: []byte("k")}, kafka.Message{Key: []byte{}, Value: []byte{}}, kafka.Message{Value: []byte("v")})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.ReadAll(t.Context(), "nil")
	if err != nil || len(got) != 3 {
		t.Fatalf("%d records: %v", len(got), err)
	}
	if got[0].Value != nil || got[1].Value == nil || got[1].Key == nil || got[2].Key != nil {
		t.Errorf("nil and empty are mixed up: %#v", got)
	}
}

func TestInProcess_ATopicIsFoundThatIsNewerThanWhatTheClientKnows(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	other, err := kafkaserver.External(t.Context(), s.Brokers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Stop)
	if err := other.CreateTopic(t.Context(), "known", 1, nil); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"new", "newer"} {
		if err := s.CreateTopic(t.Context(), topic, 1, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := other.ReadAll(t.Context(), topic); err != nil {
			t.Error(err)
		}
	}
}

func TestInProcess_ReadAllOfAnEmptyTopicIsEmptyAndOfAnUnknownOneAnError(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	create(t, s, "empty", 2, nil)
	if got, err := s.ReadAll(t.Context(), "empty"); err != nil || len(got) != 0 {
		t.Errorf("%d records: %v", len(got), err)
	}
	if _, err := s.ReadAll(t.Context(), "unknown"); !errors.Is(err, kafka.UnknownTopicOrPartition) {
		t.Errorf("unknown topic: %v", err)
	}
}

func TestInProcess_ReadAllPassesTheMarkersOfTransactions(t *testing.T) {
	t.Parallel()
	readsPastMarkers(t, inProcess(t))
}

// readsPastMarkers writes a committed and an aborted transaction; each leaves a marker that takes
// up an offset, and the last of the log is one.
func readsPastMarkers(t *testing.T, s *kafkaserver.Server) {
	t.Helper()
	create(t, s, "transactions", 1, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("transactions"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for value, end := range map[string]kgo.TransactionEndTry{"committed": kgo.TryCommit, "aborted": kgo.TryAbort} {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := client.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.ReadAll(t.Context(), "transactions")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Offset != 0 || got[1].Offset != 2 {
		t.Errorf("records %+v, want two at offsets 0 and 2", got)
	}
}

func TestInProcess_TheImitationRefusesWhatTheBrokerRefuses(t *testing.T) {
	t.Parallel()
	s := inProcess(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "20000"}))
	create(t, s, "large", 1, nil)
	create(t, s, "small", 1, map[string]string{"max.message.bytes": "1000"})
	if err := write(t, s, "large", kafka.Message{Value: make([]byte, 30000)}); !isTooLarge(err) {
		t.Errorf("a record over message.max.bytes: %v", err)
	}
	if err := write(t, s, "small", kafka.Message{Value: make([]byte, 2000)}); !isTooLarge(err) {
		t.Errorf("a record over max.message.bytes: %v", err)
	}
	if err := write(t, s, "unknown", kafka.Message{Value: []byte("x")}); !errors.Is(err, kafka.UnknownTopicOrPartition) {
		t.Errorf("an unknown topic: %v", err)
	}
	if err := s.CreateTopic(t.Context(), "large", 1, nil); !errors.Is(err, kafka.TopicAlreadyExists) {
		t.Errorf("a topic that exists: %v", err)
	}
	// It looks at the batch as sent, as the broker does.
	w := writer(s, "small")
	defer w.Close()
	w.Compression = kafka.Gzip
	if err := w.WriteMessages(t.Context(), kafka.Message{Value: bytes.Repeat([]byte("x"), 2000)}); err != nil {
		t.Errorf("a record that is small once compressed: %v", err)
	}
}

func TestInProcess_ControlKeyAnswersOneRequestInTheBrokersPlace(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	create(t, s, "faulty", 1, nil)
	s.Fake().ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		response := request.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range request.(*kmsg.ProduceRequest).Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic = topic.Topic
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.ErrorCode = kerr.NotEnoughReplicas.Code
			answer.Partitions = append(answer.Partitions, partition)
			response.Topics = append(response.Topics, answer)
		}
		return response, nil, true
	})
	if err := write(t, s, "faulty", kafka.Message{Value: []byte("x")}); !errors.Is(err, kafka.NotEnoughReplicas) {
		t.Errorf("the first write: %v, want the scripted error", err)
	}
	if err := write(t, s, "faulty", kafka.Message{Value: []byte("x")}); err != nil {
		t.Errorf("the second write: %v", err)
	}
}

func TestInProcess_FaultCallsAreForContainersOnly(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	for name, call := range map[string]func(context.Context) error{
		"Pause": s.Pause, "Unpause": s.Unpause, "StopBroker": s.StopBroker, "KillBroker": s.KillBroker, "StartBroker": s.StartBroker,
	} {
		if call(t.Context()) == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestInProcess_ExternalServersAreAskedAndLeftAlone(t *testing.T) {
	t.Parallel()
	real := inProcess(t)
	s, err := kafkaserver.External(t.Context(), real.Brokers...)
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	create(t, real, "still-there", 1, nil)
	if _, err := kafkaserver.External(t.Context(), "127.0.0.1:1"); err == nil {
		t.Error("a broker that does not answer was taken")
	}
}
