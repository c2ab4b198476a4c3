package franz

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// silence makes connections of which brokers, while it is on, get no request of one kind: they never answer it.
type silence struct {
	key  uint16
	on   atomic.Bool
	kept atomic.Int64
}

func (s *silence) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &silentConn{conn, s}, err
}

type silentConn struct {
	net.Conn
	s *silence
}

func (c *silentConn) Write(b []byte) (int, error) {
	if len(b) > 6 && binary.BigEndian.Uint16(b[4:]) == c.s.key && c.s.on.Load() {
		c.s.kept.Add(1)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

const (
	metadataKey       = 3
	initProducerIDKey = 22
)

// anEvent is one for a partition of a topic, for a Publisher whose Partitioner is byKey.
func anEvent(topic string, partition, n int) []holdfast.Event {
	return []holdfast.Event{{Topic: topic, ID: fmt.Sprintf("%d/%d", partition, n), Type: "x", Key: fmt.Sprint(partition)}}
}

func byKey(e holdfast.Event, _ int) int { return int(e.Key[0] - '0') }

// A call that asked first, and waited, would take ProduceTimeout each time.
func TestTopics_APartitionIsPublishedToWhileNoBrokerSaysWhereItIs(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 2)
	s := &silence{key: metadataKey}
	k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(s.dial)), PublisherConfig{ProduceTimeout: 5 * time.Minute, MetadataTTL: 10 * time.Millisecond, PartitionFunc: byKey})
	for p := range 2 {
		publishAll(t, k, anEvent(topic, p, 0))
	}
	s.on.Store(true)
	n := 0
	publish := func(p int) {
		t.Helper()
		n++
		answered := make(chan error, 1)
		go func() { answered <- k.Publish(context.Background(), anEvent(topic, p, n))[0] }()
		wait.Until(t, "the call is answered", func() bool { return len(answered) > 0 })
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, "a question goes unanswered", func() bool { publish(n % 2); return s.kept.Load() > 0 })
	for range 5 {
		publish(0)
		publish(1)
	}
	k.topics.expire(place{topic, 0}) // as a failure does
	for range 5 {
		publish(1)
	}
}

// held makes questions about topics wait until release is called. asked says which are under way. One that was begun before is answered
// first: it would be counted, and its answer would be that of a topic which has failed since.
func held(t *testing.T, k *Publisher) (asked func() int, release func()) {
	t.Helper()
	asked = func() int {
		k.topics.mu.RLock()
		defer k.topics.mu.RUnlock()
		return len(k.topics.asking)
	}
	wait.Until(t, "no question is under way", func() bool { return asked() == 0 })
	gate, next := make(chan struct{}), k.topics.ask
	k.topics.ask = func(ctx context.Context, names []string) (map[string]described, error) {
		<-gate
		return next(ctx, names)
	}
	return asked, sync.OnceFunc(func() { close(gate) })
}

func TestTopics_WhoWaitsForWhereATopicIs(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	known, unknown := cluster.Topic(t, 2), cluster.Topic(t, 2)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{MetadataTTL: 10 * time.Millisecond, PartitionFunc: byKey})
	for p := range 2 {
		publishAll(t, k, anEvent(known, p, 0))
	}
	asked, release := held(t, k)
	t.Cleanup(release)
	calls := map[string]chan error{}
	publish := func(ctx context.Context, topic string, p int) chan error {
		answered := make(chan error, 1)
		go func() { answered <- k.Publish(ctx, anEvent(topic, p, 1))[0] }()
		return answered
	}
	calls["a topic that was never met"] = publish(context.Background(), unknown, 0)
	wait.Until(t, "the new topic is asked for", func() bool { return asked() == 1 })
	k.topics.expire(place{known, 0})
	calls["a partition that has failed"] = publish(context.Background(), known, 0)
	wait.Until(t, "the known topic is asked for", func() bool { return asked() == 2 })
	for range 5 {
		if err := <-publish(t.Context(), known, 1); err != nil {
			t.Errorf("the partition beside it: %v", err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	left := publish(cancelled, unknown, 1)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is cancelled: %v", err)
	}
	for what, answered := range calls {
		select {
		case err := <-answered:
			t.Errorf("%s is answered while nobody says where it is: %v", what, err)
		default:
		}
	}
	release()
	for what, answered := range calls {
		if err := <-answered; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if asked() > 0 {
		t.Errorf("%d topics are asked for after all answers", asked())
	}
}

// The event may belong to another partition now.
func TestTopics_APartitionThatFailedIsNotUsedOnceThereAreMore(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 1)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{MetadataTTL: time.Minute, PartitionFunc: func(_ holdfast.Event, n int) int { return n - 1 }})
	publishAll(t, k, numbered(topic, 1, 1))
	next := k.topics.ask
	k.topics.ask = func(ctx context.Context, names []string) (map[string]described, error) {
		found, err := next(ctx, names)
		if d := found[topic]; err == nil {
			d.leaders = append(d.leaders, d.leaders[0])
			found[topic] = d
		}
		return found, err
	}
	k.topics.expire(place{topic, 0})
	err := k.Publish(t.Context(), numbered(topic, 2, 2))[0]
	var said *publish.Error
	if !errors.As(err, &said) || !said.NotSent || said.Fault != publish.FaultPartition {
		t.Errorf("the answer is %v", err)
	}
	if _, partitions := k.Partition(numbered(topic, 2, 2)[0]); partitions != 2 {
		t.Errorf("%d partitions are known, want 2", partitions)
	}
	if diff := cmp.Diff(upTo(1), idsOf(t, cluster, topic)); diff != "" {
		t.Error(diff)
	}
}

// A partition whose broker has forgotten us asks for an identity of its own. The others have theirs.
func TestTopics_APartitionThatWaitsForAnIdentityDelaysNoOther(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 2)
	s := &silence{key: initProducerIDKey}
	k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(s.dial)), PublisherConfig{ProduceTimeout: 5 * time.Minute, PartitionFunc: byKey})
	publishAll(t, k, anEvent(topic, 0, 0))
	k.sequence(place{topic, 0}).forget()
	s.on.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go k.Publish(ctx, anEvent(topic, 0, 1))
	wait.Until(t, "an identity is asked for", func() bool { return s.kept.Load() > 0 })
	answered := make(chan error, 1)
	go func() { answered <- k.Publish(context.Background(), anEvent(topic, 1, 0))[0] }()
	wait.Until(t, "the other partition has its answer", func() bool { return len(answered) > 0 })
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
