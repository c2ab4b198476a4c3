package franz

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

// The end is after what is not committed: a mark of a lane may come after an open transaction of another database.
func TestOffsets_TheBoundsOfAPartitionAreThoseOfAllItsRecords(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 2)
		k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{PartitionFunc: func(holdfast.Event, int) int { return 0 }})
		leaders, err := describe(t.Context(), k.client, []string{topic})
		if err != nil {
			t.Fatal(err)
		}
		want := func(partition int, first, end int64) {
			t.Helper()
			gotFirst, gotEnd, err := boundsOf(t.Context(), k.client, leaders[topic].leaders[partition], place{topic, partition})
			if gotFirst != first || gotEnd != end || err != nil {
				t.Errorf("partition %d begins at %d and ends at %d (%v), want %d and %d", partition, gotFirst, gotEnd, err, first, end)
			}
		}
		publishAll(t, k, numbered(topic, 1, 3))
		want(0, 0, 3)
		want(1, 0, 0)
		writer := clientOf(t, cluster.Brokers, kgo.TransactionalID("open-"+topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err := writer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := writer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		publishAll(t, k, numbered(topic, 4, 4))
		want(0, 0, 5)
		cluster.DeleteRecords(t, topic, 0, 2)
		want(0, 2, 5)
		if _, _, err := boundsOf(t.Context(), k.client, leaders[topic].leaders[0], place{topic, 7}); !errors.Is(err, kerr.UnknownTopicOrPartition) || !strings.Contains(err.Error(), topic+"/7") {
			t.Errorf("of a partition that is not there: %v", err)
		}
	})
}

func TestOffsets_AnAnswerWithoutAllOffsetsIsAnError(t *testing.T) {
	t.Parallel()
	offset := func(partition int32, offset int64, code *kerr.Error) (p kmsg.ListOffsetsResponseTopicPartition) {
		p.Partition, p.Offset = partition, offset
		if code != nil {
			p.ErrorCode = code.Code
		}
		return p
	}
	answer := func(of ...kmsg.ListOffsetsResponseTopicPartition) *kmsg.ListOffsetsResponse {
		return &kmsg.ListOffsetsResponse{Topics: []kmsg.ListOffsetsResponseTopic{{Topic: "orders", Partitions: of}}}
	}
	of := []place{{"orders", 0}, {"orders", 1}}
	got, err := offsetsIn(answer(offset(1, 9, nil), offset(0, 4, nil)), of)
	if diff := cmp.Diff(map[place]int64{of[0]: 4, of[1]: 9}, got, cmp.AllowUnexported(place{})); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for name, c := range map[string]struct {
		answer *kmsg.ListOffsetsResponse
		want   error
	}{
		"nothing":           {&kmsg.ListOffsetsResponse{}, errUnnamed},
		"one of two":        {answer(offset(0, 4, nil)), errUnnamed},
		"a code of another": {answer(offset(0, 4, nil), offset(1, -1, kerr.NotLeaderForPartition)), kerr.NotLeaderForPartition},
	} {
		if got, err := offsetsIn(c.answer, of); got != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), "orders/1") && name != "nothing" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
