package kafkago

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// namedByKey sends an event to the partition that its key names.
func namedByKey(e holdfast.Event, _ int) int {
	n := 0
	_, _ = fmt.Sscan(e.Key, &n)
	return n
}

func TestTogether_PublishTogether(t *testing.T) {
	twoLeaders := func(partition int) int { return partition % 2 }
	for _, test := range []struct {
		name    string
		script  *script
		batches []string // "1:ab": events a and b of partition 1; a capital is of a topic that is missing
		sizes   []int    // partitions of each request
		answers []string
		most    int
	}{
		{"all partitions of a leader are in one request", &script{}, []string{"0:ab", "1:c", "2:d", "3:e"}, []int{4}, []string{"ok ok", "ok", "ok", "ok"}, 0},
		{"each leader has a request", &script{leader: twoLeaders}, []string{"0:a", "1:b", "2:c", "3:d"}, []int{2, 2}, []string{"ok", "ok", "ok", "ok"}, 0},
		{"one partition is published as ever", &script{}, []string{"2:ab"}, []int{1}, []string{"ok ok"}, 0},
		{"no batch, no request", &script{}, nil, nil, nil, 0},
		{"a refused record is found in its partition alone", &script{answer: refuseWith(kafka.InvalidRecord, "c")},
			[]string{"0:ab", "1:bcd", "2:e"}, []int{1, 1, 1, 3}, []string{"ok ok", "ok record record+", "ok"}, 0},
		{"a partition that fails takes nothing from the others", &script{answer: refuseWith(kafka.NotEnoughReplicas, "b")},
			[]string{"0:a", "1:b", "2:c"}, []int{3}, []string{"ok", "partition", "ok"}, 0},
		{"a leader that gives no answer takes nothing from another's", &script{leader: twoLeaders, answer: func(_ context.Context, r request) (produce.ResponsePartition, error) {
			if r.partition%2 == 1 {
				return produce.ResponsePartition{}, io.ErrUnexpectedEOF
			}
			return produce.ResponsePartition{}, nil
		}, question: func(context.Context, int) error { return nil }},
			[]string{"0:a", "1:b", "2:c", "3:d"}, []int{2, 2}, []string{"ok", "partition", "ok", "partition"}, 0},
		{"partitions that have moved are sent alone", &script{misplaced: func(all []request) error {
			if len(all) > 1 {
				return errors.New("mismatching leaders")
			}
			return nil
		}}, []string{"0:a", "1:b"}, []int{1, 1}, []string{"ok", "ok"}, 0},
		{"a missing topic takes nothing from the others", &script{}, []string{"0:a", "0:B", "1:c"}, []int{2}, []string{"ok", "topic+", "ok"}, 0},
		{"what is too much for a request follows alone", &script{}, []string{"0:abcdefgh", "1:i"}, []int{1, 1, 2}, []string{"ok ok ok ok ok ok ok ok", "ok"}, 1024},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.script.topics = map[string]int{"t": 4}
			k := test.script.publisher(t, PublisherConfig{PartitionFunc: namedByKey, MaxRequestBytes: test.most})
			var batches [][]holdfast.Event
			for _, b := range test.batches {
				partition, ids, _ := strings.Cut(b, ":")
				var batch []holdfast.Event
				for _, id := range ids {
					topic := "t"
					if id < 'a' {
						topic = "missing"
					}
					batch = append(batch, holdfast.Event{Topic: topic, ID: string(id), Type: "x", Key: partition, Payload: make([]byte, test.most/8)})
				}
				batches = append(batches, batch)
			}
			answers := make([]string, len(batches))
			var mu sync.Mutex
			k.PublishTogether(t.Context(), batches, func(batch int, errs []error) {
				mu.Lock()
				defer mu.Unlock()
				if answers[batch] != "" {
					t.Errorf("batch %d is answered twice", batch)
				}
				answers[batch] = strings.Join(outline(errs), " ")
			})
			slices.Sort(test.script.sizes)
			if len(answers) == 0 {
				answers = nil
			}
			if diff := cmp.Diff(test.answers, answers); diff != "" {
				t.Errorf("answers: %s", diff)
			}
			if diff := cmp.Diff(test.sizes, test.script.sizes); diff != "" {
				t.Errorf("partitions of the requests: %s", diff)
			}
			if test.script.overlaps > 0 {
				t.Error("two requests of a partition were under way at a time")
			}
		})
	}
}

// A partition that does not answer keeps those in its request for half a second, whatever ProduceTimeout is.
func TestTogether_ARequestOfManyPartitionsEndsSoon(t *testing.T) {
	synctest.Test(t, aRequestOfManyPartitionsEndsSoon)
}

func aRequestOfManyPartitionsEndsSoon(t *testing.T) {
	s := &script{topics: map[string]int{"t": 3}, answer: func(ctx context.Context, r request) (produce.ResponsePartition, error) {
		if r.partition == 1 {
			<-ctx.Done()
			return produce.ResponsePartition{}, ctx.Err()
		}
		return produce.ResponsePartition{}, nil
	}}
	k := s.publisher(t, PublisherConfig{PartitionFunc: namedByKey, ProduceTimeout: time.Minute})
	faults, began := map[int]publish.Fault{}, time.Now()
	k.PublishTogether(t.Context(), [][]holdfast.Event{{{Topic: "t", ID: "a", Key: "0"}}, {{Topic: "t", ID: "b", Key: "1"}}}, func(batch int, errs []error) { faults[batch] = publish.FaultOf(errs[0]) })
	if took := time.Since(began); took != togetherTimeout {
		t.Errorf("it took %v", took)
	}
	for batch, fault := range faults {
		if fault != publish.FaultBroker && fault != publish.FaultPartition {
			t.Errorf("batch %d, of a request that got no answer, is the fault of %q", batch, fault)
		}
	}
	var late bool
	k.PublishTogether(t.Context(), [][]holdfast.Event{{{Topic: "t", ID: "c", Key: "0"}}, {{Topic: "t", ID: "d", Key: "2"}}}, func(_ int, errs []error) { late = late || errs[0] != nil })
	if late || len(faults) != 2 {
		t.Errorf("%d batches were answered, want 2; the next request without the partition failed: %v", len(faults), late)
	}
}

func TestTogether_ManyPartitionsArePublishedTogether(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{PartitionFunc: namedByKey})
		const partitions = 40
		topic := cluster.Topic(t, partitions)
		var first []holdfast.Event
		for p := range partitions {
			first = append(first, holdfast.Event{ID: fmt.Sprint("first ", p), Type: "x", Topic: topic, Key: fmt.Sprint(p), Payload: []byte("p")})
		}
		publishAll(t, k, first, func() {})
		batches := make([][]holdfast.Event, partitions)
		for p := range batches {
			for n := range 5 {
				batches[p] = append(batches[p], holdfast.Event{ID: fmt.Sprintf("%d-%d", p, n), Type: "x", Topic: topic, Key: fmt.Sprint(p), Payload: []byte("p")})
			}
		}
		for end := time.Now().Add(5 * time.Minute); len(batches) > 0; { // A busy broker may not answer for so many in time: they are sent again.
			var mu sync.Mutex
			var failed [][]holdfast.Event
			var last error
			k.PublishTogether(t.Context(), batches, func(batch int, errs []error) {
				mu.Lock()
				defer mu.Unlock()
				if err := errors.Join(errs...); err != nil {
					failed, last = append(failed, batches[batch]), err
				}
				for i, err := range errs {
					if publish.FaultOf(err) == publish.FaultRecord {
						t.Errorf("event %s: %v", batches[batch][i].ID, err)
					}
				}
			})
			if batches = failed; time.Now().After(end) {
				t.Fatal(last)
			}
		}
		found := map[int]int{}
		for _, r := range cluster.ReadAll(t, topic) {
			found[r.Partition]++
		}
		for p := range partitions {
			if found[p] < 6 {
				t.Errorf("partition %d has %d records, want 6 at least", p, found[p])
			}
		}
	})
}
