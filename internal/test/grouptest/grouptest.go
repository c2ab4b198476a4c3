// Package grouptest has tests that a consumer group of every client of Kafka must pass.
package grouptest

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Open makes a source that looks for new partitions and topics several times a second.
type Open func(cluster *kafkatest.Cluster, group string, topics ...string) inbox.Source

// ReadsNewPartitions adds partitions and a topic that the member which leads the group does not read.
func ReadsNewPartitions(t *testing.T, cluster *kafkatest.Cluster, open Open) {
	old, theirs, later := cluster.Topic(t, 1), cluster.Topic(t, 2), unmade()
	group := "group-of-" + old
	leader := join(t, open(cluster, group, old))
	awaits(t, map[string]int{old: 1}, leader)
	other := join(t, open(cluster, group, theirs, later))
	awaits(t, map[string]int{theirs: 2}, other)
	res, err := cluster.Client.CreatePartitions(t.Context(), &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{{Name: theirs, Count: 4}}})
	if err == nil {
		err = res.Errors[theirs]
	}
	if err != nil {
		t.Fatal(err)
	}
	awaits(t, map[string]int{theirs: 4}, other)
	create(t, cluster, later, 3)
	awaits(t, map[string]int{theirs: 4, later: 3}, other)
	awaits(t, map[string]int{old: 1}, leader)
}

// CreatesNoTopic has members that name a topic which is missing. Each that joins makes the leader ask for the topics again.
func CreatesNoTopic(t *testing.T, cluster *kafkatest.Cluster, open Open) {
	there, missing := cluster.Topic(t, 2), unmade()
	group := "group-of-" + there
	a := join(t, open(cluster, group, there, missing))
	awaits(t, map[string]int{there: 2}, a)
	b := join(t, open(cluster, group, there, missing))
	awaits(t, map[string]int{there: 2}, a, b)
	if cluster.Has(t, missing) {
		t.Fatal("the topic was created")
	}
	// A busy broker may not have answered when the group was opened. Then it is not known until the topics are looked for again.
	wait.Until(t, "the member knows which topic is missing", func() bool { return slices.Equal(b.missing(), []string{missing}) })
	create(t, cluster, missing, 4)
	awaits(t, map[string]int{there: 2, missing: 4}, a, b)
}

func unmade() string { return "test-" + strings.ToLower(rand.Text()) }

func create(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions int) {
	t.Helper()
	if err := cluster.Server.CreateTopic(t.Context(), topic, partitions, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Server.DeleteTopic(context.Background(), topic) })
}

// member stays in its group until the test ends.
type member struct {
	mu  sync.Mutex
	now has
}

// has is what a member has of its group.
type has struct {
	generation source.Generation
	partitions map[string]int // by topic
}

func join(t *testing.T, source inbox.Source) *member {
	t.Helper()
	s, err := source.Open(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	m := &member{}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			gen, err := s.Next(ctx)
			if err != nil {
				continue
			}
			now := has{gen, map[string]int{}}
			for tp := range gen.Assigned() {
				now.partitions[tp.Topic]++
			}
			m.mu.Lock()
			m.now = now
			m.mu.Unlock()
			select {
			case <-gen.Over():
			case <-ctx.Done():
			}
			gen.Leave()
		}
	})
	t.Cleanup(func() {
		stop()
		wg.Wait()
		s.Close()
	})
	return m
}

func (m *member) has() has {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// missing are the topics of its group that it knows to be missing by now.
func (m *member) missing() []string { return m.has().generation.(source.Incomplete).MissingTopics() }

// awaits waits until members have so many partitions of each topic together. Which of them has which is the balancer's business.
func awaits(t *testing.T, want map[string]int, members ...*member) {
	t.Helper()
	wait.Until(t, "the members have their partitions", func() bool {
		got := map[string]int{}
		for _, m := range members {
			now := m.has()
			if len(now.partitions) == 0 {
				return false
			}
			for topic, n := range now.partitions {
				got[topic] += n
			}
		}
		return maps.Equal(got, want)
	})
}
