package relay

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

func TestCancellingWaitsForTheRequestUnderWayAndSendsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{topics: map[string]int{"t": 1}, answer: func(request context.Context, _ request) (produce.ResponsePartition, error) {
			cancel()
			time.Sleep(5 * time.Second)
			return produce.ResponsePartition{}, request.Err()
		}}
		events := keyed("a", "b")
		for i := range events {
			events[i].Payload = make([]byte, 900)
		}
		began := time.Now()
		answers := s.publisher(t, KafkaConfig{MaxRequestBytes: 1024}).Publish(ctx, events)
		if diff := cmp.Diff([]string{"ok", "broker+"}, outline(answers)); diff != "" {
			t.Error(diff)
		}
		if !errors.Is(answers[1], context.Canceled) {
			t.Error(answers[1])
		}
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("came back after %v", waited)
		}
	})
}

// silent never answers: like a broker that is frozen, it leaves the request to its deadline.
func silent(ctx context.Context, _ request) (produce.ResponsePartition, error) {
	<-ctx.Done()
	return produce.ResponsePartition{}, ctx.Err()
}

func TestARequestEndsAtProduceTimeoutOrAtTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			caller, want time.Duration
		}{{time.Hour, 3 * time.Second}, {time.Second, time.Second}} {
			s := &script{topics: map[string]int{"t": 1}, answer: silent}
			ctx, cancel := context.WithTimeout(t.Context(), test.caller)
			defer cancel()
			began := time.Now()
			answers := s.publisher(t, KafkaConfig{ProduceTimeout: 3 * time.Second}).Publish(ctx, keyed("a"))
			if waited := time.Since(began); waited != test.want {
				t.Errorf("came back after %v, want %v", waited, test.want)
			}
			if FaultOf(answers[0]) != FaultBroker || retry.Classify(answers[0]) != retry.Timeout {
				t.Error(answers[0])
			}
		}
	})
}

func TestABrokerThatIsAwayWhileOthersAnswerIsAPartitionsTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 2}, answer: func(ctx context.Context, r request) (produce.ResponsePartition, error) {
			if r.partition == 1 {
				return silent(ctx, r)
			}
			time.Sleep(time.Millisecond)
			return produce.ResponsePartition{}, nil
		}}
		k := s.publisher(t, KafkaConfig{Partitioner: func(e holdfast.Event, _ int) int { return int(e.Key[0] - 'a') }})
		if diff := cmp.Diff([]string{"ok", "partition"}, outline(k.Publish(t.Context(), keyed("a", "b")))); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"broker"}, outline(k.Publish(t.Context(), keyed("b")))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAQuotaIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 1}}
		k := s.publisher(t, KafkaConfig{})
		k.resumeAt.Store(int64(time.Since(k.start) + 7*time.Second))
		began := time.Now()
		if err := k.Publish(t.Context(), keyed("a"))[0]; err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 7*time.Second {
			t.Errorf("sent after %v", waited)
		}
		k.resumeAt.Store(int64(time.Since(k.start) + 7*time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if diff := cmp.Diff([]string{"broker+"}, outline(k.Publish(ctx, keyed("a")))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestMetadataIsKeptForItsTimeAndAskedForAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 1}}
		k := s.publisher(t, KafkaConfig{MetadataTTL: time.Minute})
		publish := func() { k.Publish(t.Context(), keyed("a")) }
		publish()
		publish()
		if s.asked != 1 {
			t.Errorf("asked %d times for two pages", s.asked)
		}
		time.Sleep(time.Minute)
		publish()
		if s.asked != 2 {
			t.Errorf("asked %d times after its time", s.asked)
		}
		s.answer = refuseWith(kafka.NotLeaderForPartition, "0")
		publish()
		publish()
		if s.asked != 3 {
			t.Errorf("asked %d times after a failure", s.asked)
		}
		s.answer = nil
		s.metadata = func() error { return syscall.ECONNREFUSED }
		if err := k.Publish(t.Context(), keyed("a"))[0]; err != nil {
			t.Errorf("a number of partitions that is known does for the while that nobody answers: %v", err)
		}
		s.metadata = nil
		delete(s.topics, "t")
		if got := FaultOf(k.Publish(t.Context(), keyed("a"))[0]); got != FaultTopic {
			t.Errorf("the fault of a topic that was deleted is %q", got)
		}
	})
}
