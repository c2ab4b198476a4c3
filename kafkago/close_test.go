package kafkago

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/holdfast-go/holdfast"
)

// countingListener knows how many of its connections are open at the other end.
type countingListener struct {
	net.Listener
	open *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: c, open: l.open}, nil
}

// countedConn counts itself out when a read finds the other end gone.
type countedConn struct {
	net.Conn
	open *atomic.Int64
	gone atomic.Bool
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.gone.CompareAndSwap(false, true) {
		c.open.Add(-1)
	}
	return n, err
}

func TestAClosedPublisherLeavesNoConnectionAndConnectsAgainWhenItIsUsed(t *testing.T) {
	t.Parallel()
	var open atomic.Int64
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "t"), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		return countingListener{l, &open}, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	own, err := NewPublisher(Connection{Brokers: cluster.ListenAddrs()}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	shared := &kafka.Transport{Dial: Dial}
	defer shared.CloseIdleConnections()
	users, err := NewPublisher(Connection{Brokers: cluster.ListenAddrs(), Wrap: via(shared)}, PublisherConfig{})
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
		if open.Load() == 0 {
			t.Fatal("no connection is open after a publish, so there is nothing to close")
		}
		own.Close()
		own.Close()
		eventuallyNone(t, &open)
	}
	publish(users)
	users.Close()
	time.Sleep(50 * time.Millisecond) // for a mistake to show
	if open.Load() == 0 {
		t.Error("Close closed the connections of a Transport that is its caller's")
	}
}

func eventuallyNone(t *testing.T, open *atomic.Int64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); open.Load() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are open after Close", open.Load())
		}
	}
}
