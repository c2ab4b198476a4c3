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

func TestClose_AClosedPublisherLeavesNoConnectionAndCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"t": 3}})
	own, err := NewPublisher(Connection{Brokers: cluster.Brokers}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var closed atomic.Int64
	shared := &kafka.Transport{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := Dial(ctx, network, address)
		return counted{c, &closed}, err
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
	users.Close()
	publish(users)
	if n := closed.Load(); n != 0 {
		t.Errorf("Close has closed %d connections of a Transport that is its caller's", n)
	}
}

// counted is a connection whose end is counted.
type counted struct {
	net.Conn
	closed *atomic.Int64
}

func (c counted) Close() error {
	c.closed.Add(1)
	return c.Conn.Close()
}
