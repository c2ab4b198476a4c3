package kafkago

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestAClosedPublisherLeavesNoConnectionAndCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"t": 3}})
	own, err := NewPublisher(Connection{Brokers: cluster.Brokers}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64
	shared := &kafka.Transport{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return Dial(ctx, network, address)
	}}
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
		wait.Until(t, "no connection is open after Close", func() bool { return cluster.Connections(t) == 0 })
	}
	publish(users)
	before := dials.Load()
	users.Close()
	publish(users)
	if n := dials.Load() - before; n != 0 {
		t.Errorf("after Close %d connections of a Transport that is its caller's were made again", n)
	}
}
