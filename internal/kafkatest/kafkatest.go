// Package kafkatest gives tests a Kafka: one server per test binary, topics of each test's own.
package kafkatest

import (
	"context"
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/kafkaserver"
)

// Cluster is a Kafka for one test. It is shared; only the topics made by Topic are the test's own.
type Cluster struct {
	// Brokers are the addresses to give to a client.
	Brokers []string
	// Client talks to the cluster.
	Client *kafka.Client
	// Kind is "in-process", "container" or "external".
	Kind string
	// Server is the server itself.
	Server *kafkaserver.Server
}

// sharedInProcess is the in-process server of this test binary; it ends with the process.
var sharedInProcess = sync.OnceValues(func() (*kafkaserver.Server, error) {
	return kafkaserver.InProcess()
})

// New gives the best Kafka there is.
func New(t testing.TB) *Cluster { return InProcess(t) }

// InProcess gives the in-process Kafka of the test binary.
func InProcess(t testing.TB) *Cluster {
	t.Helper()
	s, err := sharedInProcess()
	if err != nil {
		t.Fatal(err)
	}
	return clusterOf(s)
}

func clusterOf(s *kafkaserver.Server) *Cluster {
	return &Cluster{Brokers: s.Brokers, Client: s.Client, Kind: s.Kind, Server: s}
}

// Topic makes a topic of that many partitions under a name that no other test has, and deletes
// it when the test ends. configs come in pairs, name and value.
func (c *Cluster) Topic(t testing.TB, partitions int, configs ...string) string {
	t.Helper()
	if len(configs)%2 != 0 {
		t.Fatalf("Topic's configs come in pairs, name and value: %q", configs)
	}
	settings := map[string]string{}
	for i := 0; i < len(configs); i += 2 {
		settings[configs[i]] = configs[i+1]
	}
	name := "test-" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := c.Server.CreateTopic(ctx, name, partitions, settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Server.DeleteTopic(ctx, name); err != nil {
			t.Logf("clean up: %v", err)
		}
	})
	return name
}

// ReadAll returns every record of the topic, partition by partition; an error fails the test.
func (c *Cluster) ReadAll(t testing.TB, topic string) []kafkaserver.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	records, err := c.Server.ReadAll(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// Main runs the tests of a binary and stops the servers that they shared:
//
//	func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	_ = os.Stdout.Sync()
	return code
}
