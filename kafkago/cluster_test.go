package kafkago

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// clusterPublisher returns a publisher on a cluster, with a transport that sees new topics soon.
func clusterPublisher(t testing.TB, brokers []string, c PublisherConfig) *Publisher {
	t.Helper()
	transport := &kafka.Transport{Dial: Dial, MetadataTTL: 100 * time.Millisecond}
	t.Cleanup(transport.CloseIdleConnections)
	k, err := NewPublisher(Connection{Brokers: brokers, Wrap: via(transport)}, c)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eachCluster runs a test against the imitation of Kafka inside this process, and against the real one, at the same time.
func eachCluster(t *testing.T, test func(t *testing.T, cluster *kafkatest.Cluster)) {
	t.Parallel()
	for name, cluster := range map[string]func(*testing.T) *kafkatest.Cluster{
		"in-process": func(t *testing.T) *kafkatest.Cluster { return kafkatest.InProcess(t) },
		"real":       realCluster,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cluster(t))
		})
	}
}

// publishAll publishes until everything is acknowledged, as a lane does, and calls between before each new attempt. A
// real broker refuses a new topic for a moment, until its leaders know of it.
func publishAll(t *testing.T, k *Publisher, events []holdfast.Event, between func()) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; between() {
		var left []holdfast.Event
		var last error
		for i, err := range k.Publish(t.Context(), events) {
			if err == nil {
				continue
			}
			if last = err; FaultOf(err) == publish.FaultRecord {
				t.Fatalf("event %d: %v", i, err)
			}
			left = append(left, events[i])
		}
		if events = left; len(events) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal(last)
		}
	}
}

func realCluster(t *testing.T) *kafkatest.Cluster {
	skip.InShort(t, "a real Kafka takes ten seconds to start")
	return kafkatest.Container(t)
}

// parsed reads a record back as the inbox does.
func parsed(t testing.TB, topic string, r kafkatest.Record) holdfast.Event {
	t.Helper()
	headers := make([]wire.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = wire.Header(h)
	}
	e, err := wire.Parse(topic, r.Key, r.Value, headers, r.Time)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestCluster_EventsArriveAsTheyWereWrittenWithEveryCompression(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, compression := range []kafka.Compression{-1, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
			if compression == kafka.Zstd && cluster.Kind != kafkatest.KindInProcess {
				continue // a broker needs a native library for it, which minimal images leave out: it answers Unknown, a fault of the partition
			}
			t.Run(compression.String(), func(t *testing.T) {
				t.Parallel()
				topic := cluster.Topic(t, 3)
				at := time.Date(2026, 11, 21, 12, 0, 0, 123456000, time.UTC)
				events := []holdfast.Event{
					{ID: "1", Source: "shop", Type: "order.placed", Topic: topic, Key: "a", Payload: []byte(`{"n":1}`), Time: at,
						Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "content-type": "application/json", "empty": ""}},
					{ID: "2", Type: "order.dropped", Topic: topic, Key: "a", Time: at},                      // a tombstone
					{ID: "3", Type: "order.placed", Topic: topic, Key: "b", Payload: []byte{}, Time: at},    // empty, no tombstone
					{ID: "4", Type: "order.placed", Topic: topic, Payload: []byte{0, 0xff, '\n'}, Time: at}, // no key
				}
				for i := range 500 {
					events = append(events, holdfast.Event{ID: fmt.Sprint("n", i), Type: "x", Topic: topic, Key: fmt.Sprint(i % 7), Payload: []byte(strings.Repeat("x", i)), Time: at})
				}
				k := clusterPublisher(t, cluster.Brokers, PublisherConfig{Compression: compression})
				publishAll(t, k, events, func() {})
				want := map[int][]holdfast.Event{}
				for _, e := range events {
					p, n := k.Partition(e)
					if n == 0 {
						t.Fatal("the partition of what was published is not known")
					}
					want[p] = append(want[p], e)
				}
				got := map[int][]holdfast.Event{}
				for _, r := range cluster.ReadAll(t, topic) {
					got[r.Partition] = append(got[r.Partition], parsed(t, topic, r))
					if (r.Key == nil) != (parsed(t, topic, r).Key == "") {
						t.Error("an event without a key has one in the record, or the other way round")
					}
					if time.Since(r.Time).Abs() > time.Hour {
						t.Errorf("the record's own time is %v, and retention would go by it", r.Time)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}

func TestCluster_OneRecordAByteTooLargeIsRefusedAloneAmongGoodOnes(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1, "max.message.bytes", "2000")
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{Compression: -1})
		sized := func(id, key string, n int) holdfast.Event {
			return holdfast.Event{Topic: topic, ID: id, Key: key, Type: "x", Payload: make([]byte, n)}
		}

		// The longest payload that the broker takes.
		longest := 1500
		for refused := false; !refused; {
			err := k.Publish(t.Context(), []holdfast.Event{sized("00", "k", longest+1)})[0]
			if refused = FaultOf(err) == publish.FaultRecord; err == nil { // else the topic is new, or the broker slow: it is asked again
				longest++
			}
		}

		events := []holdfast.Event{
			sized("01", "a", 10), sized("02", "b", 10), sized("03", "c", longest), sized("04", "b", longest+1),
			sized("05", "a", 10), sized("06", "b", 10), sized("07", "", longest+100), sized("08", "", 10), sized("09", "b", 10),
		}
		answers := k.Publish(t.Context(), events)
		want := []string{"ok", "ok", "ok", "record", "ok", "record+", "record", "ok", "record+"}
		if diff := cmp.Diff(want, outline(answers)); diff != "" {
			t.Error(diff)
		}
		if !errors.Is(answers[3], kafka.MessageSizeTooLarge) || !errors.Is(answers[5], kafka.MessageSizeTooLarge) {
			t.Error(answers[3], answers[5])
		}
		var ids []string
		for _, r := range cluster.ReadAll(t, topic) {
			if id := parsed(t, topic, r).ID; id != "00" {
				ids = append(ids, id)
			}
		}
		if diff := cmp.Diff([]string{"01", "02", "03", "05", "08"}, ids); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCluster_APageAboveTheBrokersLimitGoesOutInOrder(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1, "max.message.bytes", "10000")
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{Compression: -1})
		var events []holdfast.Event
		var want []string
		for i := range 500 {
			want = append(want, fmt.Sprint(i))
			events = append(events, holdfast.Event{Topic: topic, ID: want[i], Key: fmt.Sprint(i % 10), Type: "x", Payload: make([]byte, 300)})
		}
		publishAll(t, k, events, func() {})
		var got []string
		for _, r := range cluster.ReadAll(t, topic) {
			got = append(got, parsed(t, topic, r).ID)
		}
		if !slices.Equal(want, got) {
			t.Errorf("got %v", got)
		}
	})
}

func TestCluster_ATopicTheClusterDoesNotHaveIsSaidAtOnceAndNotMade(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{ProduceTimeout: time.Minute})
		events := []holdfast.Event{{Topic: topic, ID: "1", Key: "a"}, {Topic: topic + "-missing", ID: "2", Key: "a"}, {Topic: topic, ID: "3", Key: "a"}}
		publishAll(t, k, events[:1], func() {}) // the topic is new
		began := time.Now()
		if diff := cmp.Diff([]string{"ok", "topic+", "ok"}, outline(k.Publish(t.Context(), events))); diff != "" {
			t.Error(diff)
		}
		if waited := time.Since(began); waited > 30*time.Second {
			t.Errorf("it took %v", waited)
		}
		res, err := cluster.Client.Metadata(t.Context(), &kafka.MetadataRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range res.Topics {
			if found.Name == topic+"-missing" {
				t.Error("the topic was made")
			}
		}
	})
}

func TestCluster_ACompactedTopicRefusesOnlyTheEventsWithoutAKey(t *testing.T) {
	cluster := realCluster(t) // the in-process one does not look at keys
	topic := cluster.Topic(t, 1, "cleanup.policy", "compact")
	k := clusterPublisher(t, cluster.Brokers, PublisherConfig{})
	events := []holdfast.Event{{Topic: topic, ID: "1", Key: "a"}, {Topic: topic, ID: "2"}, {Topic: topic, ID: "3", Key: "b"}, {Topic: topic, ID: "4"}, {Topic: topic, ID: "5", Key: "a"}}
	publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Key: "new"}}, func() {})
	answers := k.Publish(t.Context(), events)
	if diff := cmp.Diff([]string{"ok", "record", "ok", "record", "ok"}, outline(answers)); diff != "" {
		t.Error(diff)
	}
	var got []string
	for _, r := range cluster.ReadAll(t, topic) {
		if id := parsed(t, topic, r).ID; id != "new" {
			got = append(got, id)
		}
	}
	if diff := cmp.Diff([]string{"1", "3", "5"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCluster_ManyGoroutinesPublishAtOnceEachInItsOrder(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 4)
		k := clusterPublisher(t, cluster.Brokers, PublisherConfig{})
		const lanes, pages, page = 8, 5, 100
		var group sync.WaitGroup
		for lane := range lanes {
			group.Go(func() {
				for p := range pages {
					var events []holdfast.Event
					for i := range page {
						events = append(events, holdfast.Event{Topic: topic, ID: fmt.Sprintf("%d/%04d", lane, p*page+i), Key: fmt.Sprintf("%d-%d", lane, i%9)})
					}
					publishAll(t, k, events, func() {})
				}
			})
		}
		group.Wait()
		last := map[string]string{}
		records := cluster.ReadAll(t, topic)
		for _, r := range records {
			e := parsed(t, topic, r)
			if e.ID <= last[e.Key] {
				t.Errorf("key %s: %s came after %s", e.Key, e.ID, last[e.Key])
			}
			last[e.Key] = e.ID
		}
		if len(records) != lanes*pages*page {
			t.Errorf("%d records", len(records))
		}
	})
}

// A broker that gives no answer is told from a cluster that does not, also where it is the one that the client was pointed to.
func TestCluster_AnotherLeaderIsAskedWhenOneGivesNoAnswer(t *testing.T) {
	t.Parallel()
	const topic = "spread"
	server := kafkatest.Imitate(t, kafkatest.Imitation{Nodes: 3, Topics: map[string]int{topic: 6}})
	layout, err := (&kafka.Client{Addr: kafka.TCP(server.Brokers...)}).Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	first := slices.IndexFunc(layout.Topics[0].Partitions, func(p kafka.Partition) bool { return p.ID == 0 })
	leader := net.JoinHostPort(layout.Topics[0].Partitions[first].Leader.Host, strconv.Itoa(layout.Topics[0].Partitions[first].Leader.Port))
	var mu sync.Mutex
	var away func(address string) bool
	made := map[net.Conn]string{}
	transport := &kafka.Transport{MetadataTTL: 100 * time.Millisecond, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if away != nil && away(address) {
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}
		c, err := Dial(ctx, network, address)
		made[c] = address
		return c, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	cut := func(what func(address string) bool) {
		mu.Lock()
		defer mu.Unlock()
		away = what
		for c, address := range made {
			if c != nil && what(address) {
				c.Close()
			}
		}
	}
	k, err := NewPublisher(Connection{Brokers: []string{leader}, Wrap: via(transport)}, PublisherConfig{PartitionFunc: func(holdfast.Event, int) int { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	e := []holdfast.Event{{Topic: topic, ID: "1", Source: "test", Type: "x", Key: "k"}}
	publishAll(t, k, e, func() {})
	for _, step := range []struct {
		name string
		away func(address string) bool
		want publish.Fault
	}{
		{"the leader is away, to which the client was pointed", func(address string) bool { return address == leader }, publish.FaultPartition},
		{"everybody is away", func(string) bool { return true }, publish.FaultBroker},
		{"the leader alone, again", func(address string) bool { return address == leader }, publish.FaultPartition},
	} {
		cut(step.away)
		for i := range 3 {
			if answer := k.Publish(t.Context(), e)[0]; FaultOf(answer) != step.want {
				t.Errorf("%s, try %d: the fault is %q: %v", step.name, i, FaultOf(answer), answer)
			}
		}
	}
}
