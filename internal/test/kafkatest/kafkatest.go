// Package kafkatest gives tests a Kafka: one server per test binary, topics of each test's own.
//
// New gives the best there is: the cluster that HOLDFAST_TEST_KAFKA_BROKERS names (addresses
// separated by commas), else Apache Kafka in a container, else an in-process fake.
// A test that cannot get what it asks for is skipped, or fails where REQUIRE_SERVICES=1.
package kafkatest

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// brokersVar names brokers to use instead of starting one: host:port,host:port.
const brokersVar = "HOLDFAST_TEST_KAFKA_BROKERS"

// callTimeout bounds each of the calls that this package makes for a test.
const callTimeout = time.Minute

// Cluster is a Kafka for one test. Its server is shared unless Own made it; the topics
// made by Topic are the test's own.
type Cluster struct {
	// Brokers are the addresses to give to a client.
	Brokers []string
	// Client talks to the cluster.
	Client *kafka.Client
	// Kind is "in-process", "container" or "external".
	Kind string
	// Server is the server itself, for tests that make trouble.
	Server *Server
}

// New gives the best Kafka there is. Where it is the fake a log line says so, and with
// REQUIRE_SERVICES=1 the test fails.
func New(t testing.TB) *Cluster {
	t.Helper()
	if brokers := os.Getenv(brokersVar); brokers != "" {
		s, err := external.Get(func() (*Server, error) { return dial(strings.Split(brokers, ",")) })
		if err != nil { // if the variable is set, no other server is wanted
			t.Fatalf("use %s: %v", brokersVar, err)
		}
		return clusterOf(s)
	}
	s, err := container.Get(startContainer)
	if err == nil {
		return clusterOf(s)
	}
	if !servers.IsMissing(err) {
		t.Fatal(err)
	}
	if !skip.Allowed() {
		t.Fatalf("real Kafka is required by REQUIRE_SERVICES=1: %v", err)
	}
	t.Logf("kafkatest: an in-process fake stands in for Kafka: %v", err)
	return InProcess(t)
}

// InProcess gives the in-process fake Kafka, for tests that should be quick. See
// InProcess of rig/kafkaserver for where it differs.
func InProcess(t testing.TB) *Cluster {
	t.Helper()
	s, err := inProcess.Get(func() (*Server, error) { return start("InProcessKafka", KindInProcess, servers.KafkaArgs{}) })
	need(t, err)
	return clusterOf(s)
}

// Container gives the real Kafka of this test binary, in a container.
func Container(t testing.TB) *Cluster {
	t.Helper()
	s, err := container.Get(startContainer)
	need(t, err)
	return clusterOf(s)
}

// Own starts a container for this test alone, for tests that pause, stop or kill the broker. It
// takes some ten seconds. settings come in pairs, as Topic's configs do.
func Own(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	return own(t, servers.KafkaArgs{Settings: pairs(t, settings)})
}

// OwnThree is Own with three brokers that are one cluster, on Linux. A topic has three replicas, two of which must be in sync for a write.
func OwnThree(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	return own(t, servers.KafkaArgs{Brokers: 3, Settings: pairs(t, settings)})
}

func own(t testing.TB, args servers.KafkaArgs) *Cluster {
	t.Helper()
	s, err := start("ContainerKafka", KindContainer, args)
	need(t, err)
	t.Cleanup(s.Stop)
	return clusterOf(s)
}

// Imitation is how Imitate makes a cluster.
type Imitation = servers.Imitation

// Imitate starts an imitation for this test alone. settings are the brokers', in pairs.
func Imitate(t testing.TB, made Imitation, settings ...string) *Cluster {
	t.Helper()
	s, err := start("InProcessKafka", KindInProcess, servers.KafkaArgs{Settings: pairs(t, settings), Imitation: made})
	need(t, err)
	t.Cleanup(s.Stop)
	return clusterOf(s)
}

// EachDefault runs a test on a Kafka in which topics make themselves, as they do by Kafka's default: an imitation, and a container of its
// own unless the tests are to be quick. All others refuse a topic that is not there, because one that makes itself hides a wrong name.
func EachDefault(t *testing.T, test func(t *testing.T, c *Cluster)) {
	t.Parallel()
	t.Run("in-process", func(t *testing.T) {
		t.Parallel()
		test(t, Imitate(t, Imitation{Create: true}))
	})
	t.Run("real", func(t *testing.T) {
		skip.InShort(t, "a real Kafka takes ten seconds to start")
		t.Parallel()
		test(t, Own(t, "auto.create.topics.enable", "true"))
	})
}

// Has says whether a topic is there. Asking does not create it.
func (c *Cluster) Has(t testing.TB, topic string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	transport := &kafka.Transport{MetadataTopics: []string{topic}} // one of its own, which has no answer of before
	defer transport.CloseIdleConnections()
	m, err := (&kafka.Client{Addr: kafka.TCP(c.Brokers...), Transport: transport}).Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	return len(m.Topics) == 1 && m.Topics[0].Error == nil && len(m.Topics[0].Partitions) > 0
}

// Connections is how many connections of clients an imitation has open.
func (c *Cluster) Connections(t testing.TB) int64 {
	t.Helper()
	var reply servers.ConnectionsReply
	if err := servers.Call(context.Background(), "Connections", servers.DoArgs{ID: c.Server.id}, &reply); err != nil {
		t.Fatal(err)
	}
	return reply.Open
}

// Topic makes a topic of that many partitions under a name that no other test has, and deletes
// it when the test ends. configs come in pairs: "max.message.bytes", "2000".
func (c *Cluster) Topic(t testing.TB, partitions int, configs ...string) string {
	t.Helper()
	name := "test-" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := c.Server.CreateTopic(ctx, name, partitions, pairs(t, configs)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A test may have deleted the topic or killed its broker: nothing is left to clean then.
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Server.DeleteTopic(ctx, name)
	})
	return name
}

// ReadAll returns every record of the topic, partition by partition in offset order; an error
// fails the test.
func (c *Cluster) ReadAll(t testing.TB, topic string) []Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	records, err := c.Server.ReadAll(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// DeleteRecords does what retention does: the log of the partition begins at offset afterwards.
func (c *Cluster) DeleteRecords(t testing.TB, topic string, partition int, offset int64) {
	t.Helper()
	args := servers.DeleteArgs{
		Brokers:   c.Brokers,
		Topic:     topic,
		Partition: partition,
		Offset:    offset,
	}
	if err := servers.Call(t.Context(), "DeleteRecords", args, &servers.DoReply{}); err != nil {
		t.Fatal(err)
	}
}

// Main runs the tests of a binary, stops the servers that they shared, calls after one by one
// and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m, pgtest.Stop)) }
//
// A binary without it leaves nothing behind either, except on Windows: see package lifeline.
func Main(m *testing.M, after ...func()) int {
	code := m.Run()
	Stop()
	for _, f := range after {
		f()
	}
	return code
}

// Stop stops the servers of this binary, those of package pgtest too. It is for your own TestMain; no
// test may run afterwards.
func Stop() {
	servers.Stop()
}

// The servers of this test binary, each started by the first test that asks for it.
var external, container, inProcess servers.Once[*Server]

func startContainer() (*Server, error) {
	return start("SharedKafka", KindContainer, servers.KafkaArgs{})
}

func clusterOf(s *Server) *Cluster {
	return &Cluster{Brokers: s.Brokers, Client: s.Client, Kind: s.Kind, Server: s}
}

// pairs turns name, value, name, value, … into a map.
func pairs(t testing.TB, list []string) map[string]string {
	t.Helper()
	if len(list)%2 != 0 {
		t.Fatalf("settings come in pairs, name and value: %q", list)
	}
	settings := map[string]string{}
	for i := 0; i < len(list); i += 2 {
		settings[list[i]] = list[i+1]
	}
	return settings
}

// need ends the test that wants a server and cannot get it.
func need(t testing.TB, err error) {
	t.Helper()
	servers.Need(t, err, "real Kafka", "start Docker", brokersVar)
}
