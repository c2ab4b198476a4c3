//go:build cluster

package kafkaserver_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// One cluster for all of this, because it takes many seconds to start.
func TestCluster_AClusterOfThreeBrokers(t *testing.T) {
	t.Parallel()
	s := start(t, kafkaserver.ContainerOptions{Brokers: 3, Settings: map[string]string{"KAFKA_HEAP_OPTS": "-Xmx300m -Xms100m",
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}})
	ctx := t.Context()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(t, s.CreateTopic(ctx, "kept", 6, nil))
	w := writer(s, "kept")
	defer w.Close()

	t.Run("each broker knows all three", func(t *testing.T) {
		if len(s.Nodes()) != 3 || len(s.Brokers) != 3 {
			t.Fatalf("%d nodes, brokers %q", len(s.Nodes()), s.Brokers)
		}
		for _, n := range s.Nodes() {
			if got := known(t, n); !slices.Equal(got, []int{1, 2, 3}) {
				t.Errorf("broker %d knows %v", n.ID, got)
			}
		}
	})
	t.Run("a topic has three replicas and leaders on all brokers", func(t *testing.T) {
		must(t, s.AwaitReplicas(ctx))
		leads := map[int]int{}
		for _, p := range partitionsOf(t, s, "kept") {
			leads[p.Leader.ID]++
			if len(p.Replicas) != 3 || len(p.Isr) != 3 {
				t.Errorf("partition %d has %d replicas, %d in sync", p.ID, len(p.Replicas), len(p.Isr))
			}
		}
		if len(leads) != 3 {
			t.Errorf("the leaders are %v", leads)
		}
	})
	t.Run("a write needs two replicas and no other becomes leader", func(t *testing.T) {
		for name, want := range map[string]string{"min.insync.replicas": "2", "unclean.leader.election.enable": "false"} {
			if got := setting(t, s, "kept", name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	})
	t.Run("a killed leader's partitions move and keep their records", func(t *testing.T) {
		must(t, s.AwaitReplicas(ctx))
		must(t, w.WriteMessages(ctx, kafka.Message{Key: []byte("a"), Value: []byte("before")}))
		killed := s.Nodes()[1]
		must(t, killed.Kill(ctx))
		wait.Until(t, "others lead all partitions", func() bool {
			return !slices.ContainsFunc(partitionsOf(t, s, "kept"), func(p kafka.Partition) bool { return p.Leader.ID == killed.ID || p.Leader.Host == "" })
		})
		must(t, writeUntilTaken(ctx, w, "between"))
		must(t, killed.Start(ctx))
		must(t, s.AwaitReplicas(ctx))
		wantKey(t, s, "kept", "before", "between")
	})
	t.Run("all brokers that are killed at once come back with their records", func(t *testing.T) {
		must(t, s.KillBroker(ctx))
		if _, err := s.Partitions(ctx); err == nil {
			t.Error("a killed broker answers")
		}
		must(t, s.StartBroker(ctx))
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		must(t, s.AwaitReplicas(ctx))
		must(t, writeUntilTaken(ctx, w, "after"))
		wantKey(t, s, "kept", "before", "between", "after")
	})
}

// known are the brokers that a node knows.
func known(t *testing.T, n *kafkaserver.Node) (ids []int) {
	t.Helper()
	conn, err := kafka.DialContext(t.Context(), "tcp", n.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	brokers, err := conn.Brokers()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers {
		ids = append(ids, b.ID)
	}
	slices.Sort(ids)
	return ids
}

func partitionsOf(t *testing.T, s *kafkaserver.Server, topic string) []kafka.Partition {
	t.Helper()
	all, err := s.Partitions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(p kafka.Partition) bool { return p.Topic != topic })
}

// setting is what a topic goes by.
func setting(t *testing.T, s *kafkaserver.Server, topic, name string) string {
	t.Helper()
	res, err := s.Client.DescribeConfigs(t.Context(), &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{name}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range res.Resources {
		for _, entry := range r.ConfigEntries {
			if entry.ConfigName == name {
				return entry.ConfigValue
			}
		}
	}
	return ""
}

// writeUntilTaken writes once: the client may know the dead leader for a while.
func writeUntilTaken(ctx context.Context, w *kafka.Writer, value string) (err error) {
	for range 20 {
		if err = w.WriteMessages(ctx, kafka.Message{Key: []byte("a"), Value: []byte(value)}); err == nil || ctx.Err() != nil {
			break
		}
	}
	return cause(err)
}

// wantKey asks for the values of the one key, which are in one partition. A write that was answered late is there twice.
func wantKey(t *testing.T, s *kafkaserver.Server, topic string, want ...string) {
	t.Helper()
	records, err := s.ReadAll(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, string(r.Value))
	}
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("records of %s: %q, want %q", topic, got, want)
	}
}

func TestCluster_AClusterHasOneOrThreeBrokers(t *testing.T) {
	t.Parallel()
	_, err := kafkaserver.Container(t.Context(), kafkaserver.ContainerOptions{Brokers: 2})
	if err == nil || err.Error() != "start apache/kafka:4.1.0 in containers: brokers is 2: it must be 1 or 3" {
		t.Errorf("two brokers: %v", err)
	}
}
