package holdfasttest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/relay/publishertest"
	"github.com/holdfast-go/holdfast/retry"
)

// topics makes topics of a Kafka, each with a name of its own.
func topics(k *holdfasttest.Kafka) func(t testing.TB, partitions int) string {
	var made atomic.Int64
	return func(_ testing.TB, partitions int) string {
		topic := fmt.Sprint("topic-", made.Add(1))
		k.CreateTopic(topic, partitions)
		return topic
	}
}

// readAll reads a topic as a consumer does.
func readAll(t testing.TB, k *holdfasttest.Kafka, topic string) (all []publishertest.Stored) {
	session, err := k.Source("reader of "+topic, topic).Open(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	g, err := session.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Leave()
	for tp := range g.Assigned() {
		first, end, err := g.Bounds(t.Context(), tp)
		if err != nil {
			t.Fatal(err)
		}
		for offset := first; offset < end; {
			page, err := g.Fetch(t.Context(), tp, offset, 64<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range page.Records {
				s := publishertest.Stored{Partition: tp.Partition, Record: publish.Record{Key: r.Key, Value: r.Value}}
				for _, h := range r.Headers {
					s.Headers = append(s.Headers, publish.Header(h))
				}
				all = append(all, s)
			}
			offset = page.Next
		}
	}
	return all
}

// What is published is read by consumers of the same Kafka.
func TestKafka_KafkaInMemoryIsAPublisher(t *testing.T) {
	t.Parallel()
	k := &holdfasttest.Kafka{RefuseFunc: func(e holdfast.Event) error {
		if string(e.Payload) == "refuse me" {
			return errors.New("planned")
		}
		return nil
	}}
	down := &holdfasttest.Kafka{}
	down.SetDown(true)
	publishertest.Run(t, publishertest.Options{
		Publisher:   k,
		Topic:       topics(k),
		Read:        func(t testing.TB, topic string) []publishertest.Stored { return readAll(t, k, topic) },
		Refuse:      func(e holdfast.Event) holdfast.Event { e.Payload = []byte("refuse me"); return e },
		Missing:     "missing",
		Unreachable: down,
		Bound:       30 * time.Second,
	})
}

// A relay, a consumer and a broker in memory do what they do with Kafka.
func TestKafka_AnEventGoesThroughKafkaInMemory(t *testing.T) {
	skip.InShort(t, "it takes 11 s beside the others")
	pool := setup(t)
	var k holdfasttest.Kafka
	k.CreateTopic("orders", 3)
	k.CreateTopic("invoices", 1)
	k.SetDown(true)
	log := slog.New(slog.DiscardHandler)
	r, err := relay.New(pool, &k, relay.Config{Name: "r", Lease: 2 * time.Minute, PollMin: 2 * time.Millisecond, PollMax: 20 * time.Millisecond, Logger: log,
		Retry: retry.Policy{Base: time.Millisecond, Cap: 5 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	billing := newBilling(t, pool)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var parts sync.WaitGroup
	ended := make([]error, 2)
	parts.Go(func() { ended[0] = r.Run(ctx) })
	parts.Go(func() { ended[1] = billing.Consume(ctx, k.Source("billing", "orders")) })

	start := holdfasttest.Now(t, pool)
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, placed("alice", `{"cents": 1}`), placed("bob", `{"cents": 2}`), placed("alice", `{"cents": 3}`))
	}); err != nil {
		t.Fatal(err)
	}
	if n := len(k.Published("orders")); n != 0 {
		t.Errorf("%d events reached a broker that is down", n)
	}
	k.SetDown(false)
	idle := holdfasttest.Idle{Consumers: []string{"billing"}, Topics: []string{"orders"}, Within: time.Minute}
	if err := holdfasttest.WaitIdle(t.Context(), pool, idle); err != nil {
		t.Fatal(err)
	}
	stop()
	parts.Wait()
	if err := errors.Join(ended...); err != nil {
		t.Error(err)
	}
	holdfasttest.RequireEvents(t, holdfasttest.WrittenSince(t, pool, start), placed("alice", `{"cents": 1}`), placed("alice", `{"cents": 3}`))
	holdfasttest.RequireEvents(t, k.Published("orders"), placed("alice", `{"cents": 1}`), placed("alice", `{"cents": 3}`))
	if n := pgtest.Count(t, pool, "select sum(cents)::bigint from invoices"); n != 6 {
		t.Errorf("invoices of %d cents, want 6", n)
	}
	var keys []string
	for _, e := range k.Published("invoices") {
		keys = append(keys, e.Key)
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"alice", "alice", "bob"}) {
		t.Errorf("invoices of %q are published", keys)
	}
}

func TestKafka_ATopicIsMadeOnce(t *testing.T) {
	t.Parallel()
	var k holdfasttest.Kafka
	k.CreateTopic("o", 2)
	for name, partitions := range map[string]int{"o": 2, "none": 0} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("topic %s with %d partitions was made", name, partitions)
				}
			}()
			k.CreateTopic(name, partitions)
		}()
	}
	if p, n := k.Partition(holdfast.Event{Topic: "absent"}); p != 0 || n != 0 {
		t.Errorf("an absent topic has partition %d of %d", p, n)
	}
	if k.Published("absent") != nil {
		t.Error("an absent topic has events")
	}
}
