//go:build unix

package franz

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// publishLane publishes until everything is acknowledged, as a relay does. An answer that ends the lane ends it.
func publishLane(t *testing.T, lane publish.LaneProducer, events []holdfast.Event) error {
	t.Helper()
	for end := time.Now().Add(longEnough); len(events) > 0; {
		var left []holdfast.Event
		var last error
		for i, err := range lane.Publish(t.Context(), events) {
			if errors.Is(err, publish.ErrLaneTaken) {
				return err
			}
			if err != nil {
				left, last = append(left, events[i]), err
			}
		}
		if events = left; time.Now().After(end) {
			t.Fatal(last)
		}
	}
	return nil
}

func settledAll(events []holdfast.Event) (names []publish.EventName, readAt time.Time) {
	for i := range events {
		names = append(names, publish.EventNameOf(&events[i]))
	}
	return names, time.Time{}
}

func committedIDs(t *testing.T, cluster *kafkatest.Cluster, topic string) (ids []string) {
	for _, r := range committed(t, cluster, topic) {
		ids = append(ids, parsed(t, topic, r).ID)
	}
	return ids
}

func TestLane_TheNextOwnerOfALanePublishesOnlyWhatIsNotCommitted(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		k := transactional(t, cluster, TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster)})
		first := k.OpenLane("holdfast", 2, 1)
		for i := 1; i <= 9; i += 3 {
			if err := publishLane(t, first, numbered(topic, i, i+2)); err != nil {
				t.Fatal(err)
			}
		}
		first.Settled(settledAll(numbered(topic, 1, 4)))
		// It dies: it is not closed.
		second := k.OpenLane("holdfast", 2, 2)
		if err := publishLane(t, second, numbered(topic, 5, 12)); err != nil {
			t.Fatal(err)
		}
		second.Settled(settledAll(numbered(topic, 5, 12)))
		second.Close() // writes what is left: nothing
		third := k.OpenLane("holdfast", 2, 3)
		if err := publishLane(t, third, numbered(topic, 13, 14)); err != nil {
			t.Fatal(err)
		}
		third.Close()
		first.Close()
		if diff := cmp.Diff(upTo(14), committedIDs(t, cluster, topic)); diff != "" {
			t.Error(diff)
		}
	})
}

// A relay whose claim is old comes last to the broker. Kafka alone would take it for the owner, and what it has not saved is in no mark.
func TestLane_AnOldClaimPublishesNothing(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		topic := cluster.Topic(t, 1)
		k := transactional(t, cluster, TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster)})
		zombie := k.OpenLane("holdfast", 0, 1)
		owner := k.OpenLane("holdfast", 0, 2)
		t.Cleanup(func() { zombie.Close(); owner.Close() })
		if err := publishLane(t, owner, numbered(topic, 1, 5)); err != nil {
			t.Fatal(err)
		}
		owner.Settled(settledAll(numbered(topic, 1, 5)))
		if err := publishLane(t, owner, numbered(topic, 6, 6)); err != nil {
			t.Fatal(err)
		}
		if err := publishLane(t, zombie, numbered(topic, 1, 5)); err == nil {
			t.Error("the old claim publishes")
		}
		if err := publishLane(t, owner, numbered(topic, 7, 8)); err != nil { // the zombie has fenced it
			t.Fatal(err)
		}
		if diff := cmp.Diff(upTo(8), committedIDs(t, cluster, topic)); diff != "" {
			t.Error(diff)
		}
	})
}

// commitCutter makes connections that break at a commit, before it is sent or instead of its answer, as long as it is armed.
type commitCutter struct {
	before bool
	armed  atomic.Bool
	cuts   atomic.Int64
}

func (c *commitCutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &commitConn{Conn: conn, c: c}, err
}

type commitConn struct {
	net.Conn
	c   *commitCutter
	cut atomic.Bool
}

func (c *commitConn) Write(b []byte) (int, error) {
	const endTxnKey = 26
	if len(b) > 6 && binary.BigEndian.Uint16(b[4:]) == endTxnKey && c.c.armed.Load() {
		c.c.cuts.Add(1)
		if c.c.before {
			c.Conn.Close()
			return 0, io.ErrClosedPipe
		}
		c.cut.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *commitConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func TestLane_ACommitWithoutAnAnswerIsFoundOut(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprint("lost before it arrives: ", before), func(t *testing.T) {
				topic := cluster.Topic(t, 1)
				c := &commitCutter{before: before}
				k, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers(cluster.Brokers...), kgo.Dialer(c.dial)},
					TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster), ProduceTimeout: 3 * time.Second, TransactionTimeout: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(k.Close)
				var failed atomic.Int64
				k.reached = func(step string) {
					if step == stepCommit && c.armed.CompareAndSwap(true, false) {
						failed.Add(1)
					}
				}
				lane := k.OpenLane("holdfast", 0, 1)
				t.Cleanup(lane.Close)
				if err := publishLane(t, lane, numbered(topic, 1, 3)); err != nil {
					t.Fatal(err)
				}
				c.armed.Store(true)
				if err := publishLane(t, lane, numbered(topic, 4, 6)); err != nil {
					t.Fatal(err)
				}
				if err := publishLane(t, lane, numbered(topic, 7, 8)); err != nil {
					t.Fatal(err)
				}
				if c.cuts.Load() == 0 || failed.Load() == 0 {
					t.Error("no commit was cut off")
				}
				if diff := cmp.Diff(upTo(8), committedIDs(t, cluster, topic)); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}

func TestLane_WrongOptionsOfATransactionalPublisherAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers("127.0.0.1:1"), kgo.AllowAutoTopicCreation(), kgo.TransactionalID("mine")},
		TransactionalConfig{ProduceTimeout: time.Millisecond, TransactionTimeout: time.Microsecond, Linger: time.Minute})
	for _, want := range []string{"options: topics are created automatically", `options: transactional id is "mine"`, "transactional id is empty", "marks topic is empty",
		"produce timeout is 1ms", "transaction timeout is 1µs", "linger is 1m0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}
