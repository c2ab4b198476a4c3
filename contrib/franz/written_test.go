package franz

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// lateBroker makes a Publisher's broker answer a code in place of success, to as many requests as armed says. It has written them.
func lateBroker(k *Publisher, topic string, code *kerr.Error) (armed *atomic.Int64) {
	armed = new(atomic.Int64)
	next := k.ask
	k.ask = func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
		answer, err := next(ctx, broker, req)
		if err == nil && armed.Add(-1) >= 0 {
			return answerWith(topic, code), nil
		}
		return answer, err
	}
	return armed
}

// late are the ways in which events may be in the log without a prompt answer. Each leaves them there once.
var late = []struct {
	name   string
	code   *kerr.Error
	told   publish.Fault // of the call that sent them
	found  bool          // a call of another lane has found them written since
	copies int           // in the log once they are published again
}{
	{"acknowledged late, in the same call", kerr.RequestTimedOut, "", false, 2},
	{"told as failed, and found written", kerr.NotLeaderForPartition, publish.FaultPartition, true, 1},
	{"told as failed, and not asked for since", kerr.NotLeaderForPartition, publish.FaultPartition, false, 1},
}

// publishLate publishes events, to a topic with one partition, in one of the late ways. The log has "new" before them, and "other" after
// them if they were found.
func publishLate(t *testing.T, k *Publisher, way int, topic string, events []holdfast.Event) {
	t.Helper()
	armed := lateBroker(k, topic, late[way].code)
	publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Type: "x"}})
	armed.Store(1)
	for i, err := range k.Publish(t.Context(), events) {
		if FaultOf(err) != late[way].told {
			t.Fatalf("event %d: the fault is %q, want %q: %v", i, FaultOf(err), late[way].told, err)
		}
	}
	if late[way].found {
		publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "other", Type: "x"}})
	}
}

// countsOf is how often each event of a topic is in the log, by what tells it apart.
func countsOf(t *testing.T, cluster *kafkatest.Cluster, topic string, name func(e holdfast.Event) string) map[string]int {
	counts := map[string]int{}
	for _, r := range cluster.ReadAll(t, topic) {
		counts[name(parsed(t, topic, r))]++
	}
	return counts
}

func TestWritten_AnotherEventUnderTheIDOfALateOneIsSent(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for way := range late {
			t.Run(late[way].name, func(t *testing.T) {
				topic := cluster.Topic(t, 1)
				k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
				first := holdfast.Event{Topic: topic, ID: "1", Source: "shop", Type: "order.placed", Key: "k", Payload: []byte("placed"), Time: at,
					Headers: map[string]string{"tenant": "a"}}
				publishLate(t, k, way, topic, []holdfast.Event{first})
				name := func(e holdfast.Event) string {
					return fmt.Sprintf("%s %s %s %s %q %v %s", e.Source, e.ID, e.Type, e.Key, e.Payload, e.Headers["tenant"], e.Time)
				}
				var others []holdfast.Event
				for _, change := range []func(e *holdfast.Event){
					func(e *holdfast.Event) { e.Payload = []byte("changed") },
					func(e *holdfast.Event) { e.Payload = nil },
					func(e *holdfast.Event) { e.Type = "order.changed" },
					func(e *holdfast.Event) { e.Key = "l" },
					func(e *holdfast.Event) { e.Source = "store" },
					func(e *holdfast.Event) { e.Headers = map[string]string{"tenant": "b"} },
					func(e *holdfast.Event) { e.Time = at.Add(time.Second) },
				} {
					e := first
					change(&e)
					others = append(others, e)
				}
				publishAll(t, k, others)
				publishAll(t, k, []holdfast.Event{first})
				counts := countsOf(t, cluster, topic, name)
				for _, e := range others {
					if n := counts[name(e)]; n != 1 {
						t.Errorf("%s is in the log %d times", name(e), n)
					}
				}
				if n := counts[name(first)]; n != late[way].copies {
					t.Errorf("the late one, published again, is in the log %d times, want %d", n, late[way].copies)
				}
			})
		}
	})
}

func TestWritten_ATopicMadeAgainGetsABackfillWhole(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for way := range late {
			for _, ttl := range []time.Duration{10 * time.Millisecond, time.Minute} {
				t.Run(fmt.Sprintf("%s, topics believed for %v", late[way].name, ttl), func(t *testing.T) {
					topic := cluster.Topic(t, 1)
					k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{MetadataTTL: ttl})
					events := numbered(topic, 1, 20)
					publishLate(t, k, way, topic, events)
					makeAgain(t, cluster, topic)
					publishAll(t, k, append(events, numbered(topic, 21, 21)...))
					counts := countsOf(t, cluster, topic, func(e holdfast.Event) string { return e.ID })
					for _, id := range upTo(21) {
						if counts[id] == 0 {
							t.Errorf("event %s is acknowledged and not in the topic", id)
						}
					}
				})
			}
		}
	})
}

// makeAgain deletes a topic, and makes it again with one partition.
func makeAgain(t *testing.T, cluster *kafkatest.Cluster, topic string) {
	t.Helper()
	client := clientOf(t, cluster.Brokers)
	known := func() described {
		found, err := describe(t.Context(), client, []string{topic})
		if err != nil {
			t.Fatal(err)
		}
		return found[topic]
	}
	was := known().id
	if err := cluster.Server.DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	for cluster.Server.CreateTopic(t.Context(), topic, 1, nil) != nil {
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
	for {
		if d := known(); d.err == nil && d.id != was && len(d.leaders) == 1 && d.leaders[0] >= 0 {
			return
		}
	}
}

// A number that the broker knows and we have not used is somebody else's record.
func TestWritten_ABatchWhoseNumbersAreTakenIsSentUnderOthers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 1)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
	publishAll(t, k, numbered(topic, 1, 1))
	refuseOnce(k, topic, kerr.DuplicateSequenceNumber)
	for i, err := range k.Publish(t.Context(), numbered(topic, 2, 3)) {
		if err != nil {
			t.Errorf("event %d: %v", i, err)
		}
	}
	if diff := cmp.Diff(upTo(3), idsOf(t, cluster, topic)); diff != "" {
		t.Error(diff)
	}
}

func TestWritten_WhatIsRememberedOfAPartitionIsBounded(t *testing.T) {
	hash := func(i int) recordHash { return recordHash{byte(i), byte(i >> 8), byte(i >> 16)} }
	hashes := func(from, n int) (all []recordHash) {
		for i := range n {
			all = append(all, hash(from+i))
		}
		return all
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var w written
	if w.has(hash(1), now) {
		t.Error("nothing is remembered, and it is known")
	}
	w.add(hashes(1, 2), now)
	for after, want := range map[time.Duration]bool{0: true, rememberedFor - 1: true, rememberedFor: false} {
		if w.has(hash(1), now.Add(after)) != want {
			t.Errorf("after %v it is known: %t, want %t", after, !want, want)
		}
	}
	w.add(hashes(3, 1), now.Add(rememberedFor))
	if len(w) != 1 {
		t.Errorf("%d records are remembered, want that of the last minutes", len(w))
	}
	now = now.Add(rememberedFor)
	w.add(hashes(4, writtenMost-1), now)
	if len(w) != writtenMost || !w.has(hash(3), now) {
		t.Errorf("%d records are remembered, want %d", len(w), writtenMost)
	}
	w.add(hashes(1<<20, 2), now)
	if len(w) != 2 || !w.has(hash(1<<20), now) {
		t.Errorf("%d records are remembered after one too many, want the last 2", len(w))
	}
}

// What is removed has used numbers of the shared identity. Its partition must not use them again.
func TestWritten_APartitionThatNobodyPublishesToIsForgotten(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic, other := cluster.Topic(t, 1), cluster.Topic(t, 1)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
	publishAll(t, k, numbered(topic, 1, 3))
	at := place{topic, 0}
	idle := func(s *sequence, busy bool) {
		k.mu.Lock()
		k.sweptAt = time.Time{}
		k.mu.Unlock()
		s.mu.Lock()
		s.busy, s.usedAt = busy, time.Now().Add(-rememberedFor)
		s.mu.Unlock()
	}
	s := k.sequence(at)
	idle(s, true)
	publishAll(t, k, numbered(other, 1, 1))
	if k.sequences[at] != s {
		t.Error("a partition with a call under way is forgotten")
	}
	idle(s, false)
	publishAll(t, k, numbered(other, 2, 2))
	if len(k.sequences) != 1 {
		t.Errorf("%d partitions are remembered, want 1", len(k.sequences))
	}
	publishAll(t, k, numbered(topic, 4, 6))
	if now := k.sequence(at); *now.by == *s.by {
		t.Errorf("the partition has the identity %v again", *now.by)
	}
	if diff := cmp.Diff(upTo(6), idsOf(t, cluster, topic)); diff != "" {
		t.Error(diff)
	}
}

func TestWritten_AnAnswerThatIsNoneOfAProduceRequestAcknowledgesNothing(t *testing.T) {
	b := &load{place: place{"orders", 0}, answered: make(chan answer, 1), deadline: time.Now().Add(time.Minute)}
	l := &line{ask: func(context.Context, int32, *kmsg.ProduceRequest) (kmsg.Response, error) {
		return kmsg.NewPtrMetadataResponse(), nil
	}}
	l.send([]*load{b})
	if a := <-b.answered; a.err == nil {
		t.Error("the batch is acknowledged")
	}
}
