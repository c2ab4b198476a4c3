//go:build unix

package franz

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

// requestCutter makes connections that break at requests of one kind, before they are sent or in place of their answers, while it is
// armed. The broker has answered when an answer is lost.
type requestCutter struct {
	key    int16
	before bool
	nth    int64 // the only one that is cut, from 1 on; 0 for all
	armed  atomic.Bool
	seen   atomic.Int64
	cuts   atomic.Int64
}

func (c *requestCutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &requestConn{Conn: conn, meets: c.meets}, err
}

// meets says whether a request is to be cut, and whether before it is sent.
func (c *requestCutter) meets(request []byte) (cut, before bool) {
	if len(request) < 6 || int16(binary.BigEndian.Uint16(request[4:])) != c.key || !c.armed.Load() {
		return false, false
	}
	if n := c.seen.Add(1); c.nth > 0 && n != c.nth {
		return false, false
	}
	c.cuts.Add(1)
	return true, c.before
}

type requestConn struct {
	net.Conn
	meets  func(request []byte) (cut, before bool)
	cut    atomic.Bool
	closed atomic.Bool
}

func (c *requestConn) isClosed() bool { return c.closed.Load() }

func (c *requestConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *requestConn) Write(b []byte) (int, error) {
	if cut, before := c.meets(b); cut && before {
		c.Conn.Close()
		return 0, io.ErrClosedPipe
	} else if cut {
		c.cut.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *requestConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// Each request on the way of a lane is lost in turn, or its answer: those of the owner that takes the lane from a dead one, reads its mark
// and publishes. Brokers before Kafka 4 have one request more: AddPartitionsToTxn.
func TestTransactionalAnswers_ALostAnswerToAnyRequestRepeatsNothing(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, kind := range []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata, kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.ListOffsets, kmsg.Fetch,
			kmsg.AddPartitionsToTxn, kmsg.Produce, kmsg.EndTxn} {
			for _, before := range []bool{false, true} {
				lost := "answer"
				if before {
					lost = "request"
				}
				t.Run(fmt.Sprintf("%s, the %s", kmsg.NameForKey(int16(kind)), lost), func(t *testing.T) {
					t.Parallel()
					nth := int64(1)
					for loseOne(t, cluster, &requestCutter{key: int16(kind), before: before, nth: nth}) {
						nth++
					}
					if nth == 1 {
						t.Error("the lane makes no such request")
					}
					t.Logf("%d of them, one lost in each turn", nth-1)
				})
			}
		}
	})
}

// loseOne has an owner of a lane publish while the cutter is armed, behind one that died without a save. It says whether something was cut.
func loseOne(t *testing.T, cluster *kafkatest.Cluster, c *requestCutter) bool {
	t.Helper()
	topic := cluster.Topic(t, 1)
	config := TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster), ProduceTimeout: 5 * time.Second}
	dead := transactional(t, cluster, config).OpenLane("holdfast", 0, 1)
	defer dead.Close()
	if err := publishLane(t, dead, numbered(topic, 1, 3)); err != nil {
		t.Fatal(err)
	}
	opts := []kgo.Opt{kgo.SeedBrokers(cluster.Brokers...), kgo.Dialer(c.dial)}
	if c.key == int16(kmsg.AddPartitionsToTxn) {
		opts = append(opts, kgo.MaxVersions(kversion.V3_6_0()))
	}
	k, err := NewTransactionalPublisher(opts, config)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c.armed.Store(true)
	lane := k.OpenLane("holdfast", 0, 2)
	for _, part := range [][2]int{{1, 6}, {7, 8}} { // The dead one has committed 1 to 3.
		events := numbered(topic, part[0], part[1])
		if err := publishLane(t, lane, events); err != nil {
			t.Fatal(err)
		}
		lane.Settled(settledAll(events))
	}
	lane.Close()
	c.armed.Store(false)
	if diff := cmp.Diff(upTo(8), committedIDs(t, cluster, topic)); diff != "" {
		t.Errorf("number %d: %s", c.nth, diff)
	}
	return c.cuts.Load() > 0
}
