package kafkago

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

func TestWaits_CancellingWaitsForTheRequestUnderWayAndSendsNoOther(t *testing.T) {
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
		answers := s.publisher(t, PublisherConfig{MaxRequestBytes: 1024}).Publish(ctx, events)
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

func TestWaits_ARequestEndsAtProduceTimeoutOrAtTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			caller, want time.Duration
		}{{time.Hour, 3 * time.Second}, {time.Second, time.Second}} {
			s := &script{topics: map[string]int{"t": 1}, answer: silent}
			ctx, cancel := context.WithTimeout(t.Context(), test.caller)
			defer cancel()
			began := time.Now()
			answers := s.publisher(t, PublisherConfig{ProduceTimeout: 3 * time.Second}).Publish(ctx, keyed("a"))
			if waited := time.Since(began); waited != test.want {
				t.Errorf("came back after %v, want %v", waited, test.want)
			}
			if FaultOf(answers[0]) != publish.FaultBroker || retry.Classify(answers[0]) != retry.Timeout {
				t.Error(answers[0])
			}
		}
	})
}

// byKey has key "a" in partition 0, and so on.
func byKey(e holdfast.Event, _ int) int { return int(e.Key[0] - 'a') }

// A leader that gives no answer is told from a cluster that is away by asking another, each time.
func TestWaits_ALeaderThatIsAwayIsKnownFromAClusterThatIs(t *testing.T) {
	reset := func(context.Context, request) (produce.ResponsePartition, error) {
		return produce.ResponsePartition{}, &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	}
	here := func(context.Context, int) error { return nil }
	hangs := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	gone := func(context.Context, int) error { return syscall.ECONNREFUSED }
	own := func(p int) int { return p }
	for _, row := range []struct {
		name   string
		leader func(context.Context, request) (produce.ResponsePartition, error)
		leads  func(int) int
		others func(context.Context, int) error
		fault  string
		took   time.Duration
		asks   bool
	}{
		{"a leader hangs", silent, own, here, "partition", 3 * time.Second, true},
		{"a leader is gone", reset, own, here, "partition", 0, true},
		{"a leader hangs, and another", silent, own, func(ctx context.Context, p int) error {
			if p == 0 {
				return hangs(ctx, p)
			}
			return nil
		}, "partition", 3 * time.Second, true},
		{"the cluster hangs", silent, own, hangs, "broker", 3*time.Second + askTimeout, true},
		{"the cluster is gone", reset, own, gone, "broker", 0, true},
		{"the one leader of all hangs", silent, nil, here, "broker", 3 * time.Second, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{topics: map[string]int{"t": 3}, leader: row.leads, question: row.others, answer: row.leader}
				k := s.publisher(t, PublisherConfig{ProduceTimeout: 3 * time.Second, PartitionFunc: byKey})
				for range 3 {
					began, asked := time.Now(), s.questions
					if diff := cmp.Diff([]string{row.fault}, outline(k.Publish(t.Context(), keyed("b")))); diff != "" {
						t.Error(diff)
					}
					if took := time.Since(began); took != row.took {
						t.Errorf("it took %v, want %v", took, row.took)
					}
					synctest.Wait() // One that answers is enough; the other is asked all the same.
					if asks := s.questions > asked; asks != row.asks {
						t.Errorf("%d questions", s.questions-asked)
					}
				}
			})
		})
	}
}

// What others acknowledge meanwhile needs no question.
func TestWaits_ALeaderAwayWhileOthersAnswerIsAPartitionsTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 2}, answer: func(ctx context.Context, r request) (produce.ResponsePartition, error) {
			if r.partition == 1 {
				return silent(ctx, r)
			}
			time.Sleep(time.Millisecond)
			return produce.ResponsePartition{}, nil
		}}
		k := s.publisher(t, PublisherConfig{PartitionFunc: byKey})
		if diff := cmp.Diff([]string{"ok", "partition"}, outline(k.Publish(t.Context(), keyed("a", "b")))); diff != "" || s.questions > 0 {
			t.Error(diff, s.questions)
		}
		if diff := cmp.Diff([]string{"broker"}, outline(k.Publish(t.Context(), keyed("b")))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWaits_ManyPartitionsOfASilentClusterAskOnceForEachLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 20}, leader: func(p int) int { return p % 2 }, answer: silent,
			question: func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }}
		k := s.publisher(t, PublisherConfig{ProduceTimeout: 3 * time.Second, PartitionFunc: byKey})
		began := time.Now()
		for i, err := range k.Publish(t.Context(), keyed(strings.Split("abcdefghijklmnopqrst", "")...)) {
			if FaultOf(err) != publish.FaultBroker {
				t.Errorf("event %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 3*time.Second+askTimeout || s.questions != 2 {
			t.Errorf("%d questions in %v", s.questions, took)
		}
	})
}

func TestWaits_ACallerThatStopsDoesNotWaitForOtherLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{topics: map[string]int{"t": 2}, leader: func(p int) int { return p }, answer: silent}
		s.question = func(ctx context.Context, _ int) error {
			time.Sleep(10 * time.Millisecond) // until the other wants to know as well
			cancel()
			time.Sleep(10 * time.Millisecond)
			return ctx.Err()
		}
		k := s.publisher(t, PublisherConfig{ProduceTimeout: 3 * time.Second, PartitionFunc: byKey})
		var other error
		var done sync.WaitGroup
		done.Go(func() {
			time.Sleep(time.Millisecond)
			other = k.Publish(t.Context(), keyed("a"))[0]
		})
		began := time.Now()
		if got := FaultOf(k.Publish(ctx, keyed("a"))[0]); got != publish.FaultBroker {
			t.Errorf("the fault is %q", got)
		}
		if took := time.Since(began); took != 3010*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		done.Wait()
		if FaultOf(other) != publish.FaultPartition || s.questions != 1 {
			t.Errorf("the one who goes on was told %v, by %d questions", other, s.questions)
		}
	})
}

func TestWaits_AQuotaIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 1}}
		k := s.publisher(t, PublisherConfig{})
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

func TestWaits_MetadataIsKeptForItsTimeAndAskedForAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{topics: map[string]int{"t": 1}}
		k := s.publisher(t, PublisherConfig{MetadataTTL: time.Minute})
		send := func() { k.Publish(t.Context(), keyed("a")) }
		send()
		send()
		if s.asked != 1 {
			t.Errorf("asked %d times for two pages", s.asked)
		}
		time.Sleep(time.Minute)
		send()
		if s.asked != 2 {
			t.Errorf("asked %d times after its time", s.asked)
		}
		s.answer = refuseWith(kafka.NotLeaderForPartition, "0")
		send()
		send()
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
		if got := FaultOf(k.Publish(t.Context(), keyed("a"))[0]); got != publish.FaultTopic {
			t.Errorf("the fault of a topic that was deleted is %q", got)
		}
	})
}
