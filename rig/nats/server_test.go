package nats

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	natsjs "github.com/holdfast-go/holdfast/contrib/nats"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// natsServer is a NATS server with JetStream in this process, which keeps its streams in a folder of the test.
type natsServer struct {
	testing.TB
	options server.Options
	s       *server.Server
	made    atomic.Int64
}

// startServer starts a server. change may change its options.
func startServer(t testing.TB, change ...func(*server.Options)) *natsServer {
	t.Helper()
	n := &natsServer{TB: t, options: server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}}
	for _, c := range change {
		c(&n.options)
	}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *natsServer) start() {
	n.Helper()
	o := n.options
	s, err := server.NewServer(&o)
	if err != nil {
		n.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(wait.Limit()) {
		n.Fatal("the server does not start")
	}
	n.s = s
	n.options.Port = o.Port // for the next start
}

func (n *natsServer) stop() {
	n.s.Shutdown()
	n.s.WaitForShutdown()
}

// restart stops the server and starts it on the same port with what it has on disk.
func (n *natsServer) restart() {
	n.Helper()
	n.stop()
	n.start()
}

// connect is a connection of its own, which reconnects for ever.
func (n *natsServer) connect(options ...nats.Option) jetstream.JetStream {
	n.Helper()
	return connectTo(n, n.s.ClientURL(), options...)
}

func connectTo(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(url, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// topic makes a topic of a new name.
func (n *natsServer) topic(js jetstream.JetStream, partitions int, change ...func(*jetstream.StreamConfig)) string {
	n.Helper()
	topic := fmt.Sprintf("orders.v%d", n.made.Add(1))
	n.createTopic(js, topic, partitions, change...)
	return topic
}

func (n *natsServer) createTopic(js jetstream.JetStream, topic string, partitions int, change ...func(*jetstream.StreamConfig)) {
	n.Helper()
	c, err := natsjs.StreamConfig(topic, partitions)
	if err != nil {
		n.Fatal(err)
	}
	for _, f := range change {
		f(&c)
	}
	if _, err := js.CreateStream(n.Context(), c); err != nil {
		n.Fatal(err)
	}
}

// message is what a stream has.
type message struct {
	partition int
	seq       uint64
	header    nats.Header
	data      []byte
}

func (m message) id() string { return m.header.Get("ce-id") }

// messages are all that a topic's stream has, in its order.
func messages(t testing.TB, js jetstream.JetStream, topic string) (all []message) {
	t.Helper()
	s, err := js.Stream(t.Context(), natsjs.StreamName(topic))
	if err != nil {
		t.Fatal(err)
	}
	state := s.CachedInfo().State
	for seq := max(1, state.FirstSeq); seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		partition := 0
		if _, err := fmt.Sscanf(strings.TrimPrefix(m.Subject, topic+".p"), "%d", &partition); err != nil {
			t.Fatalf("subject %s: %v", m.Subject, err)
		}
		all = append(all, message{partition, seq, m.Header, m.Data})
	}
	return all
}

// idsByKey are the ids that a topic has, by key.
func idsByKey(t testing.TB, js jetstream.JetStream, topic string) map[string][]string {
	t.Helper()
	by := map[string][]string{}
	for _, m := range messages(t, js, topic) {
		key := m.header.Get("hf-key")
		by[key] = append(by[key], m.id())
	}
	return by
}

func publisherOn(t testing.TB, js jetstream.JetStream, c natsjs.PublisherConfig) *natsjs.Publisher {
	t.Helper()
	p, err := natsjs.NewPublisher(js, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func groupOn(t testing.TB, js jetstream.JetStream, c natsjs.GroupConfig) *natsjs.Group {
	t.Helper()
	g, err := natsjs.NewGroup(js, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func eventOf(topic, id, key string) holdfast.Event {
	return holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: topic, Key: key, Payload: []byte("payload of " + id)}
}
