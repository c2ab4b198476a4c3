package kafkago

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/grouptest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

func watcher(cluster *kafkatest.Cluster, group string, topics ...string) inbox.Source {
	g, err := NewGroup(Connection{Brokers: cluster.Brokers}, GroupConfig{GroupID: group, Topics: topics,
		HeartbeatInterval: 100 * time.Millisecond, WatchInterval: 100 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	return g
}

func TestFollower_AGroupReadsNewPartitionsThatItsLeaderDoesNotRead(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) { grouptest.ReadsNewPartitions(t, cluster, watcher) })
}

// A mistyped topic must not become one, and one that was deleted must not come back.
func TestFollower_AGroupCreatesNoTopic(t *testing.T) {
	kafkatest.EachDefault(t, func(t *testing.T, cluster *kafkatest.Cluster) { grouptest.CreatesNoTopic(t, cluster, watcher) })
}

func TestFollower_APublisherCreatesNoTopic(t *testing.T) {
	kafkatest.EachDefault(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{})
		answers := k.Publish(t.Context(), []holdfast.Event{{ID: "1", Type: "t", Topic: "missing", Key: "k"}})
		if slices.Contains(answers, nil) || cluster.Has(t, "missing") {
			t.Errorf("the answers are %v, and the topic is there is %v", answers, cluster.Has(t, "missing"))
		}
	})
}

// Who leads compares all topics with what it has assigned by. Who does not lead lets nothing go.
func TestFollower_OnlyTheLeaderFormsTheGroupAnew(t *testing.T) {
	broker := &script{topics: map[string]int{"orders": 1}}
	s := &session{g: GroupConfig{Topics: []string{"orders"}}, addr: kafka.TCP("script:9092"), client: &kafka.Client{Transport: broker}}
	s.others.open = func([]string) (*kafka.Transport, *kafka.Client) { return nil, s.client }
	b := balancer{kafka.RangeGroupBalancer{}, s}
	assigns := func() {
		b.AssignGroups([]kafka.GroupMember{{ID: "us", Topics: []string{"orders"}}, {ID: "them", Topics: []string{"theirs"}}}, nil)
	}
	set := func(topic string, partitions int) {
		broker.mu.Lock()
		defer broker.mu.Unlock()
		broker.topics[topic] = partitions
	}
	looks := func(when string, want bool) {
		t.Helper()
		for range 3 {
			if got := s.look(t.Context()); got != want {
				t.Errorf("%s: the group forms anew is %v, want %v", when, got, want)
			}
		}
	}
	looks("before it has joined", false)
	assigns()
	looks("while their topic is missing", false)
	set("theirs", 2)
	looks("their topic is there", true)
	assigns()
	looks("it is assigned", false)
	set("theirs", 3)
	looks("their topic has another partition", true)
	if _, err := b.UserData(); err != nil { // It joins again, and another leads.
		t.Fatal(err)
	}
	looks("another leads", false)
	set("orders", 5)
	looks("another leads, and our topic has more partitions", false)
	if s.counts["orders"] != 5 {
		t.Errorf("it has seen %v", s.counts)
	}
}

// kept is a connection that keeps what is written.
type kept struct {
	net.Conn
	all bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) { return k.all.Write(p) }

func TestFollower_RequestsForMetadataSayThatNothingIsCreated(t *testing.T) {
	request := func(api, version byte, body ...byte) []byte {
		return append([]byte{0, 0, 0, byte(4 + len(body)), 0, api, 0, version}, body...)
	}
	written := slices.Concat(request(3, 6, 9, 9, 1), request(3, 1, 9, 1), request(3, 6, 1), request(11, 6, 1), request(12, 0), request(3, 8, 1, 1, 1), request(3, 4, 1, 1))
	want := slices.Concat(request(3, 6, 9, 9, 0), request(3, 1, 9, 1), request(3, 6, 0), request(11, 6, 1), request(12, 0), request(3, 8, 1, 1, 1), request(3, 4, 1, 0))
	for size := 1; size <= len(written); size++ {
		k := &kept{}
		c := &neverCreates{Conn: k}
		before := bytes.Clone(written)
		for piece := range slices.Chunk(written, size) {
			if n, err := c.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if !bytes.Equal(k.all.Bytes(), want) {
			t.Errorf("in pieces of %d bytes: %v is written, want %v", size, k.all.Bytes(), want)
		}
		if !bytes.Equal(written, before) {
			t.Fatal("the caller's bytes were changed")
		}
	}
}
