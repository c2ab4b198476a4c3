//go:build unix

package franz

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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
		var skipped [][2]int
		k := transactional(t, cluster, TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster),
			OnSkipped: func(lane, events int) { skipped = append(skipped, [2]int{lane, events}) }})
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
		if diff := cmp.Diff([][2]int{{2, 5}}, skipped); diff != "" {
			t.Errorf("skipped, by lane: %s", diff)
		}
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

// Two relays believe that they own a lane, and publish it at the same time, each from the start of the log. Kafka fences whoever was there
// before, again and again; the marks say what is committed. The older claim ends, and readers of committed records see one log. Two with
// one claim, which Postgres never gives, end so too.
func TestLane_TwoRelaysOnOneLaneByForceCommitEachEventOnce(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		const events, page = 120, 4
		for _, epochs := range [][2]int64{{1, 2}, {2, 2}} {
			t.Run(fmt.Sprint("claims ", epochs), func(t *testing.T) {
				t.Parallel()
				topic := cluster.Topic(t, 1)
				// The time-outs are short for the imitation: it may leave a transaction open that a real Kafka ends by fencing.
				config := TransactionalConfig{TransactionalID: newID(), MarksTopic: marksTopic(t, cluster), ProduceTimeout: 2 * time.Second, TransactionTimeout: 3 * time.Second, Linger: -1}
				var ended [2]int // the event that each came to
				var both sync.WaitGroup
				began := time.Now()
				for n, epoch := range epochs {
					lane := transactional(t, cluster, config).OpenLane("holdfast", 0, epoch)
					t.Cleanup(lane.Close)
					both.Go(func() {
						for ended[n] < events {
							part := numbered(topic, ended[n]+1, ended[n]+page)
							if err := publishLane(t, lane, part); err != nil {
								return
							}
							if ended[n] += page; ended[n]%(5*page) == 0 && epoch == 2 { // The older claim saves nothing: Postgres refuses it.
								lane.Settled(settledAll(numbered(topic, ended[n]-5*page+1, ended[n])))
							}
						}
					})
				}
				both.Wait()
				t.Logf("they came to %v after %v", ended, time.Since(began))
				if max(ended[0], ended[1]) != events {
					t.Errorf("none published all: they came to %v of %d", ended, events)
				}
				if diff := cmp.Diff(upTo(events), committedIDs(t, cluster, topic)); diff != "" {
					t.Error(diff)
				}
			})
		}
	})
}

func TestLane_ACommitWithoutAnAnswerIsFoundOut(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprint("lost before it arrives: ", before), func(t *testing.T) {
				topic := cluster.Topic(t, 1)
				c := &requestCutter{key: int16(kmsg.EndTxn), before: before}
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
