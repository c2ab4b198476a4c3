package franz

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/grouptest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

func watcher(cluster *kafkatest.Cluster, group string, topics ...string) inbox.Source {
	g, err := NewGroup([]kgo.Opt{kgo.SeedBrokers(cluster.Brokers...)}, GroupConfig{GroupID: group, Topics: topics,
		HeartbeatInterval: 100 * time.Millisecond, WatchInterval: 200 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	return g
}

func TestFollower_AGroupReadsNewPartitionsThatItsLeaderDoesNotRead(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) { grouptest.ReadsNewPartitions(t, cluster, watcher) })
}

func TestFollower_AGroupCreatesNoTopic(t *testing.T) {
	kafkatest.EachDefault(t, func(t *testing.T, cluster *kafkatest.Cluster) { grouptest.CreatesNoTopic(t, cluster, watcher) })
}

func TestFollower_APublisherCreatesNoTopic(t *testing.T) {
	kafkatest.EachDefault(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
		answers := k.Publish(t.Context(), []holdfast.Event{{ID: "1", Type: "t", Topic: "missing", Key: "k"}})
		if slices.Contains(answers, nil) || cluster.Has(t, "missing") {
			t.Errorf("the answers are %v, and the topic is there is %v", answers, cluster.Has(t, "missing"))
		}
	})
}
