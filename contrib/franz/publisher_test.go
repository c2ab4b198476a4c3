package franz

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/kafkafault"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// numbered are events of a topic, with ids from one number to another, of a few keys.
func numbered(topic string, from, to int) []holdfast.Event {
	var events []holdfast.Event
	for i := from; i <= to; i++ {
		events = append(events, holdfast.Event{Topic: topic, ID: fmt.Sprint(i), Source: "shop", Type: "order.placed", Key: fmt.Sprint("k", i%3), Payload: []byte(strings.Repeat("x", i))})
	}
	return events
}

// idsOf are the events of a topic with one partition, in the log's order.
func idsOf(t *testing.T, cluster *kafkatest.Cluster, topic string) (ids []string) {
	for _, r := range cluster.ReadAll(t, topic) {
		ids = append(ids, parsed(t, topic, r).ID)
	}
	return ids
}

func upTo(n int) (ids []string) {
	for i := 1; i <= n; i++ {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// cutter makes connections of which one can be cut after the broker has answered a Produce request, and before anybody reads it.
type cutter struct{ armed, cuts atomic.Int64 }

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &cutConn{Conn: conn, c: c}, err
}

type cutConn struct {
	net.Conn
	c   *cutter
	cut atomic.Bool
}

func (c *cutConn) Write(b []byte) (int, error) {
	if len(b) > 6 && binary.BigEndian.Uint16(b[4:]) == produceKey && c.c.armed.Add(-1) >= 0 {
		c.cut.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		c.c.cuts.Add(1)
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// The next call asks what became of the batch, whatever it publishes itself.
func TestPublisher_ABatchWhoseAnswerWasLostIsWrittenOnce(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, again := range []struct {
			name  string
			calls [][2]int // first and last event of each call after the lost one
		}{
			{"the same events again", [][2]int{{1, 10}}},
			{"more events with them", [][2]int{{1, 12}}},
			{"in parts", [][2]int{{1, 4}, {5, 10}, {11, 12}}},
			{"another lane's events first", [][2]int{{11, 12}, {1, 10}}},
		} {
			t.Run(again.name, func(t *testing.T) {
				topic := cluster.Topic(t, 1)
				c := &cutter{}
				k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(c.dial)), PublisherConfig{})
				publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Type: "x"}}) // the topic is new, and the connection made
				c.armed.Store(1)
				for i, err := range k.Publish(t.Context(), numbered(topic, 1, 10)) {
					if FaultOf(err) != publish.FaultBroker {
						t.Fatalf("event %d, whose answer is lost: %v", i, err)
					}
				}
				want := []string{"new"}
				want = append(want, upTo(10)...)
				for _, part := range again.calls {
					publishAll(t, k, numbered(topic, part[0], part[1]))
					for i := max(part[0], 11); i <= part[1]; i++ {
						want = append(want, fmt.Sprint(i))
					}
				}
				if diff := cmp.Diff(want, idsOf(t, cluster, topic)); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}

// Every request to a partition is lost, one after the other, while several lanes publish to it.
func TestPublisher_ManyLostAnswersWriteNothingTwiceAndLoseNothing(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const lanes, pages, page = 4, 12, 20
		topic := cluster.Topic(t, 2)
		c := &cutter{}
		k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(c.dial)), PublisherConfig{})
		publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Type: "x"}})
		var all sync.WaitGroup
		for lane := range lanes {
			all.Go(func() {
				for p := range pages {
					if p%2 == 0 {
						c.armed.Store(1)
					}
					var events []holdfast.Event
					for i := range page {
						events = append(events, holdfast.Event{Topic: topic, ID: fmt.Sprintf("%d/%04d", lane, p*page+i), Type: "x", Key: fmt.Sprintf("%d-%d", lane, i%5)})
					}
					publishAll(t, k, events)
				}
			})
		}
		all.Wait()
		last, seen := map[string]string{}, map[string]bool{}
		for _, r := range cluster.ReadAll(t, topic) {
			e := parsed(t, topic, r)
			if seen[e.ID] {
				t.Errorf("%s is in the log twice", e.ID)
			}
			if seen[e.ID] = true; e.ID <= last[e.Key] {
				t.Errorf("key %s: %s came after %s", e.Key, e.ID, last[e.Key])
			}
			last[e.Key] = e.ID
		}
		if len(seen) != lanes*pages*page+1 {
			t.Errorf("the log has %d events, want %d", len(seen), lanes*pages*page+1)
		}
	})
}

// answerWith is a broker's answer for partition 0 of a topic.
func answerWith(topic string, code *kerr.Error) *kmsg.ProduceResponse {
	resp := kmsg.NewPtrProduceResponse()
	t := kmsg.NewProduceResponseTopic()
	t.Topic = topic
	p := kmsg.NewProduceResponseTopicPartition()
	p.ErrorCode = code.Code
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

// lateReplicas answers for partition 0 as a broker does whose replicas are late, and sends the rest of a request on.
func lateReplicas(on *atomic.Bool, next asker) asker {
	return func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
		late := ""
		for i := range req.Topics {
			topic := &req.Topics[i]
			if at := slices.IndexFunc(topic.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return p.Partition == 0 }); at >= 0 && on.Load() {
				late = topic.Topic
				topic.Partitions = slices.Delete(topic.Partitions, at, at+1)
			}
		}
		if late == "" {
			return next(ctx, broker, req)
		}
		timer := time.NewTimer(time.Duration(req.TimeoutMillis) * time.Millisecond)
		defer timer.Stop()
		resp := answerWith(late, kerr.RequestTimedOut)
		if len(req.Topics[0].Partitions) > 0 {
			rest, err := next(ctx, broker, req)
			if err != nil {
				return nil, err
			}
			resp.Topics[0].Partitions = append(resp.Topics[0].Partitions, rest.(*kmsg.ProduceResponse).Topics[0].Partitions...)
		}
		<-timer.C
		return resp, nil
	}
}

func TestPublisher_APartitionWithLateReplicasDelaysNoOther(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 4)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{ProduceTimeout: time.Minute, PartitionFunc: func(e holdfast.Event, n int) int { return len(e.ID) % n }})
	var late atomic.Bool
	k.ask, k.askSlow = lateReplicas(&late, k.ask), lateReplicas(&late, k.askSlow)
	of := func(partition, n int) []holdfast.Event {
		return []holdfast.Event{{Topic: topic, ID: strings.Repeat("i", 4*n+partition+4), Type: "x"}}
	}
	for p := range 4 {
		publishAll(t, k, of(p, 0))
	}
	late.Store(true)
	answered := make(chan error, 1)
	go func() { answered <- k.Publish(context.Background(), of(0, 1))[0] }()
	wait.Until(t, "the partition has a line of its own", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.lines[lineOf{0, true}] != nil
	})
	for n := range 50 {
		for p := 1; p < 4; p++ {
			if err := k.Publish(t.Context(), of(p, n+1))[0]; err != nil {
				t.Fatalf("partition %d: %v", p, err)
			}
		}
	}
	select {
	case err := <-answered:
		t.Fatalf("the partition answers while its replicas are late: %v", err)
	default:
	}
	late.Store(false)
	if err := <-answered; err != nil {
		t.Errorf("the replicas are there, and the answer is %v", err)
	}
	if err := k.Publish(t.Context(), of(0, 2))[0]; err != nil || k.sequence(place{topic, 0}).slow {
		t.Errorf("after a prompt answer: %v, slow %t", err, k.sequence(place{topic, 0}).slow)
	}
}

// refuseOnce has broker 0 answer the next request with code, and write nothing of it.
func refuseOnce(k *Publisher, topic string, code *kerr.Error) {
	once := false
	k.line(0, false).ask = func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
		if once {
			return k.ask(ctx, broker, req)
		}
		once = true
		return answerWith(topic, code), nil
	}
}

func TestPublisher_ABrokerThatForgotTheProducerIsGivenAnother(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.InProcess(t)
	topic := cluster.Topic(t, 1)
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
	publishAll(t, k, numbered(topic, 1, 3))
	for n, code := range []*kerr.Error{kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.ProducerFenced} {
		before := k.sequence(place{topic, 0}).by
		refuseOnce(k, topic, code)
		for i, err := range k.Publish(t.Context(), numbered(topic, 4+3*n, 6+3*n)) {
			if err != nil {
				t.Errorf("%v, event %d: %v", code, i, err)
			}
		}
		if now := k.sequence(place{topic, 0}).by; *now == *before {
			t.Errorf("after %v the producer is still %v", code, *now)
		}
	}
	if diff := cmp.Diff(upTo(15), idsOf(t, cluster, topic)); diff != "" {
		t.Error(diff)
	}
}

// A leader that loses its partition has written the batch, and so has the next one. Another batch of the same size must not take its
// numbers: the broker would take that for the one that it has.
func TestPublisher_ABatchIsAskedForAgainAfterItsLeaderHasMoved(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch} {
		cluster := kafkatest.InProcess(t)
		topic := cluster.Topic(t, 1)
		k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
		publishAll(t, k, numbered(topic, 1, 1))
		ask, once := k.ask, false
		k.line(0, false).ask = func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
			answer, err := ask(ctx, broker, req)
			if once || err != nil {
				return answer, err
			}
			once = true
			return answerWith(topic, code), nil
		}
		if err := k.Publish(t.Context(), numbered(topic, 2, 2))[0]; FaultOf(err) != publish.FaultPartition {
			t.Errorf("%v: %v", code, err)
		}
		publishAll(t, k, numbered(topic, 3, 3)) // of another lane
		publishAll(t, k, numbered(topic, 2, 2))
		if diff := cmp.Diff(upTo(3), idsOf(t, cluster, topic)); diff != "" {
			t.Errorf("%v: %s", code, diff)
		}
	}
}

func TestPublisher_SequenceNumbersGoOnFromZero(t *testing.T) {
	for _, c := range []struct {
		from int32
		n    int
		want int32
	}{{0, 1, 1}, {5, 10, 15}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 3, 1}} {
		if got := after(c.from, c.n); got != c.want {
			t.Errorf("%d records from %d on are followed by %d, want %d", c.n, c.from, got, c.want)
		}
	}
}

func TestPublisher_EveryCompressionArrives(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for name, codec := range map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression()} {
			topic := cluster.Topic(t, 1)
			k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.ProducerBatchCompression(codec)), PublisherConfig{})
			publishAll(t, k, numbered(topic, 1, 300))
			if diff := cmp.Diff(upTo(300), idsOf(t, cluster, topic)); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	})
}

func TestPublisher_ACompactedTopicRefusesOnlyTheEventsWithoutAKey(t *testing.T) {
	cluster := kafkatest.Container(t) // the imitation does not look at keys
	topic := cluster.Topic(t, 1, "cleanup.policy", "compact")
	k := publisherOn(t, clientOf(t, cluster.Brokers), PublisherConfig{})
	events := []holdfast.Event{{Topic: topic, ID: "1", Key: "a"}, {Topic: topic, ID: "2"}, {Topic: topic, ID: "3", Key: "b"}, {Topic: topic, ID: "4"}, {Topic: topic, ID: "5", Key: "a"}}
	publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Key: "new"}})
	var faults []publish.Fault
	for _, err := range k.Publish(t.Context(), events) {
		faults = append(faults, FaultOf(err))
	}
	if want := []publish.Fault{"", publish.FaultRecord, "", publish.FaultRecord, ""}; !slices.Equal(faults, want) {
		t.Errorf("the faults are %q, want %q", faults, want)
	}
	if diff := cmp.Diff([]string{"new", "1", "3", "5"}, idsOf(t, cluster, topic)); diff != "" {
		t.Error(diff)
	}
}

// A relay treats the errors of both clients alike: kafkago has a test of the same table.
func TestPublisher_EveryCodeMeansWhatTheTableOfKafkaSays(t *testing.T) {
	for code := int16(-1); code <= 133; code++ {
		if code == 0 {
			continue
		}
		if ours, want := FaultOf(kerr.ErrorForCode(code)), kafkafault.Of(int(code)).Fault; ours != want {
			t.Errorf("code %d (%v) is the fault of %q, and by the table of %q", code, kerr.ErrorForCode(code), ours, want)
		}
	}
}

func TestPublisher_AllWrongOptionsAreNamedAtOnce(t *testing.T) {
	client := clientOf(t, []string{"127.0.0.1:1"}, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite(), kgo.AllowAutoTopicCreation())
	_, err := NewPublisher(client, PublisherConfig{ProduceTimeout: time.Millisecond, MaxRequestBytes: 1, MetadataTTL: time.Hour, Slow: client})
	for _, want := range []string{"client: required acks", "client: idempotent writes are disabled", "client: topics are created automatically", "slow: required acks",
		"produce timeout is 1ms", "max request bytes is 1", "metadata ttl is 1h0m0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if _, err := NewPublisher(nil, PublisherConfig{}); err == nil || !strings.Contains(err.Error(), "client is nil") {
		t.Errorf("no client: %v", err)
	}
	for _, opts := range [][]kgo.Opt{{kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders")}, {kgo.WithHooks(&onceHook{})}} {
		client := clientOf(t, []string{"127.0.0.1:1"}, opts...)
		if _, err := NewPublisher(client, PublisherConfig{}); err == nil || !strings.Contains(err.Error(), "set slow") {
			t.Errorf("a client whose options serve no second one: %v", err)
		}
		k, err := NewPublisher(client, PublisherConfig{Slow: clientOf(t, []string{"127.0.0.1:1"})})
		if err != nil {
			t.Error(err)
		} else {
			k.Close()
		}
	}
}

// onceHook is a hook for one client, as some that register metrics are.
type onceHook struct{ used bool }

func (h *onceHook) OnNewClient(*kgo.Client) {
	if h.used {
		panic("registered twice")
	}
	h.used = true
}

func TestPublisher_AnAnswerSaysWhatKindOfErrorItIs(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Imitate(t, kafkatest.Imitation{Nodes: 2, Topics: map[string]int{"spread": 4}})
	var mu sync.Mutex
	away := map[string]bool{}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if away[address] {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	e := []holdfast.Event{{Topic: "spread", ID: "1", Type: "x", Key: "k"}}
	client := func() *Publisher {
		return publisherOn(t, clientOf(t, cluster.Brokers, kgo.Dialer(dial), kgo.RequestRetries(1)), PublisherConfig{ProduceTimeout: 5 * time.Second, PartitionFunc: func(holdfast.Event, int) int { return 0 }})
	}
	k := client()
	publishAll(t, k, e)
	leader := k.topics.get("spread").leaders[0]
	meta, err := describeBrokers(t.Context(), k.client)
	if err != nil {
		t.Fatal(err)
	}
	k = client()
	k.topics.lookup(t.Context(), []string{"spread"})
	mu.Lock()
	away[meta[leader]] = true
	mu.Unlock()
	if got := FaultOf(k.Publish(t.Context(), e)[0]); got != publish.FaultPartition {
		t.Errorf("the leader alone is away, and it is the fault of %q", got)
	}
	mu.Lock()
	for _, address := range meta {
		away[address] = true
	}
	mu.Unlock()
	k = client()
	if got := FaultOf(k.Publish(t.Context(), e)[0]); got != publish.FaultBroker {
		t.Errorf("all are away, and it is the fault of %q", got)
	}
}

// describeBrokers returns the addresses of the brokers.
func describeBrokers(ctx context.Context, client *kgo.Client) (map[int32]string, error) {
	req := kmsg.NewPtrMetadataRequest()
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	found := map[int32]string{}
	for _, b := range resp.Brokers {
		found[b.NodeID] = net.JoinHostPort(b.Host, fmt.Sprint(b.Port))
	}
	return found, nil
}
