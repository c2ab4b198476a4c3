package kafkago

import (
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

func TestAClosedPublisherLeavesNoConnectionAndCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"t": 3}})
	own, err := NewPublisher(Connection{Brokers: cluster.Brokers}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	shared := &kafka.Transport{Dial: Dial}
	defer shared.CloseIdleConnections()
	users, err := NewPublisher(Connection{Brokers: cluster.Brokers, Wrap: via(shared)}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(k *Publisher) {
		t.Helper()
		for _, err := range k.Publish(t.Context(), []holdfast.Event{{ID: "1", Topic: "t", Type: "t", Key: "a"}, {ID: "2", Topic: "t", Type: "t", Key: "b"}}) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		publish(own)
		if cluster.Connections(t) == 0 {
			t.Fatal("no connection is open after a publish, so there is nothing to close")
		}
		own.Close()
		own.Close()
		eventuallyNone(t, cluster)
	}
	publish(users)
	users.Close()
	time.Sleep(50 * time.Millisecond) // for a mistake to show
	if cluster.Connections(t) == 0 {
		t.Error("Close closed the connections of a Transport that is its caller's")
	}
}

func eventuallyNone(t *testing.T, cluster *kafkatest.Cluster) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); cluster.Connections(t) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open after Close", cluster.Connections(t))
		}
	}
}
