package kafkago

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func TestBroken_AFrozenBrokerCostsRepeatsButNoEventsAndNoOrder(t *testing.T) {
	skip.InShort(t, "a real Kafka takes ten seconds to start")
	t.Parallel()
	cluster := kafkatest.Own(t)
	topic := cluster.Topic(t, 2)
	k := clusterPublisher(t, cluster.Brokers, PublisherConfig{ProduceTimeout: 500 * time.Millisecond})
	var events []holdfast.Event
	for i := range 300 {
		events = append(events, holdfast.Event{Topic: topic, ID: fmt.Sprintf("%04d", i), Key: fmt.Sprint(i % 5)})
	}
	publishAll(t, k, events[:100], func() {})
	if err := cluster.Server.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	tries := 0
	publishAll(t, k, events[100:200], func() {
		if tries++; tries == 2 { // two requests have been given up, and wait in the frozen broker's sockets
			if err := cluster.Server.Unpause(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	publishAll(t, k, events[200:], func() {})

	seen := map[string]bool{}
	last := map[string]string{}
	records := cluster.ReadAll(t, topic)
	for _, r := range records {
		e := parsed(t, topic, r)
		if seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		if e.ID < last[e.Key] {
			t.Errorf("key %s: the first %s stands behind %s", e.Key, e.ID, last[e.Key])
		}
		last[e.Key] = e.ID
	}
	if len(seen) != len(events) {
		t.Errorf("%d of %d events are in the log", len(seen), len(events))
	}
	t.Logf("%d repeats", len(records)-len(seen))
}

func TestBroken_ABrokerThatIsGoneHoldsTheLaneAndIsFoundAgain(t *testing.T) {
	// A door in front of the broker, that can be shut.
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"t": 1}})
	var mu sync.Mutex
	var open []net.Conn
	shut := false
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if shut {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		c, err := Dial(ctx, network, address)
		if err == nil {
			open = append(open, c)
		}
		return c, err
	}}
	defer transport.CloseIdleConnections()
	k, err := NewPublisher(Connection{Brokers: cluster.Brokers, Wrap: via(transport)}, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	event := []holdfast.Event{{Topic: "t", ID: "1", Key: "a"}}
	publishAll(t, k, event, func() {})
	mu.Lock()
	shut = true
	for _, c := range open {
		c.Close()
	}
	mu.Unlock()
	for range 3 {
		if got := FaultOf(k.Publish(t.Context(), event)[0]); got != publish.FaultBroker {
			t.Errorf("the fault is %q", got)
		}
	}
	mu.Lock()
	shut = false
	mu.Unlock()
	var last error
	for range 3 { // one connection at most was left from before
		if last = k.Publish(t.Context(), event)[0]; last == nil {
			return
		}
	}
	t.Error(last)
}

func TestBroken_AClusterNeverReachedIsTheBrokersTroubleNotTheTopics(t *testing.T) {
	transport := &kafka.Transport{Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}}
	defer transport.CloseIdleConnections()
	k, err := NewPublisher(Connection{Brokers: []string{"127.0.0.1:9"}, Wrap: via(transport)}, PublisherConfig{ProduceTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if answers := outline(k.Publish(t.Context(), keyed("a"))); answers[0] != "broker+" {
		t.Errorf("%v", answers)
	}
}

func TestBroken_AConnectionOfDialIsCutWhenItIsClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	c.Close()
	if _, err := other.Read(make([]byte, 1)); err == io.EOF || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other end reads %v: what was unsent would still be delivered", err)
	}
}

func TestBroken_ARequestWithoutAnAnswerLeavesNoConnectionBehind(t *testing.T) {
	// The broker takes the request and never answers, as when it hangs. When Publish is back the connection must be
	// closed: on an open one the answer, or the request, could still come through.
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"t": 1}})
	closed := make(chan struct{}, 16)
	muted := make(chan struct{})
	transport := &kafka.Transport{MetadataTTL: time.Minute, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: c, closed: closed, muted: muted}, nil
	}}
	defer transport.CloseIdleConnections()
	k, err := NewPublisher(Connection{Brokers: cluster.Brokers, Wrap: via(transport)}, PublisherConfig{ProduceTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	publishAll(t, k, []holdfast.Event{{Topic: "t", ID: "1"}}, func() {}) // a busy machine may need more than one request's time
	close(muted)
	answers := k.Publish(t.Context(), []holdfast.Event{{Topic: "t", ID: "2"}})
	if got := FaultOf(answers[0]); got != publish.FaultBroker {
		t.Errorf("the fault is %q: %v", got, answers[0])
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the connection is still open")
	}
}

// watchedConn is a connection that swallows what it should read once muted is closed.
type watchedConn struct {
	net.Conn
	closed chan<- struct{}
	muted  <-chan struct{}
}

func (c *watchedConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		select {
		case <-c.muted:
			if err == nil {
				continue
			}
		default:
		}
		return n, err
	}
}

func (c *watchedConn) Close() error {
	select {
	case <-c.muted: // one that is closed before is not the one that is muted
		select {
		case c.closed <- struct{}{}:
		default:
		}
	default:
	}
	return c.Conn.Close()
}
