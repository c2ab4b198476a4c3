package kafkago

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// generation is one distribution of the partitions among the members of the group.
type generation struct {
	s     *session
	gen   *kafka.Generation
	ended chan struct{}
	left  chan struct{}
	once  sync.Once

	unread unreads

	// missed is closed when a broker did not know a topic of ours. The one that it knows next may be another, made again
	// under the name, in which our offsets mean nothing. So this generation reads and commits no more: the next one asks
	// for the group's offsets, which Kafka forgets with a topic, and for the log's bounds.
	missed chan struct{}
	miss   sync.Once
}

var _ source.Grouped = (*generation)(nil)

// GroupID names the group.
func (g *generation) GroupID() string { return g.s.g.GroupID }

var _ source.Incomplete = (*generation)(nil)

// MissingTopics are the topics of the group that did not exist when it was last looked.
func (g *generation) MissingTopics() (missing []string) {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	for _, topic := range g.s.g.Topics {
		if g.s.counts != nil && g.s.counts[topic] == 0 {
			missing = append(missing, topic)
		}
	}
	return missing
}

// errTopicMissed is what a generation says that has met a topic that was not there.
var errTopicMissed = errors.New("a topic was missing: it may have been recreated, so the node joins the group again")

// missedPause is how long a generation that missed a topic waits before it ends. A broker that has just started may not
// know its topics for a while.
const missedPause = 500 * time.Millisecond

// meets takes note of a topic that is not there.
func (g *generation) meets(err error) error {
	if errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) {
		g.miss.Do(func() { close(g.missed) })
	}
	return err
}

func (g *generation) hasMissed() bool {
	select {
	case <-g.missed:
		return true
	default:
		return false
	}
}

// watch ends the generation of the group's leader when topics have other partitions than it has assigned, and that of any member when one was
// missing for a moment. kafka-go's own watcher ends it at once, and again and again, while a topic is missing; and that of a follower to
// no purpose: it is given the same partitions again.
func (g *generation) watch(ctx context.Context) {
	tick := time.NewTicker(g.s.g.WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C: // Before that the answer may be older than what the group was assigned by.
			differs := g.s.look(ctx)
			if differs || ctx.Err() != nil {
				return
			}
		case <-g.missed:
			select {
			case <-time.After(missedPause):
			case <-ctx.Done():
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (g *generation) Assigned() map[source.TopicPartition]source.Start {
	all := map[source.TopicPartition]source.Start{}
	for topic, parts := range g.gen.Assignments {
		for _, p := range parts {
			offset := p.Offset
			if offset < 0 { // kafka-go says FirstOffset where nothing was committed
				offset = source.NoOffset
			}
			all[source.TopicPartition{Topic: topic, Partition: p.ID}] = source.Start{
				Committed:      offset,
				AdoptCommitted: g.s.g.AdoptCommitted,
				SkipDeleted:    g.s.g.SkipDeleted,
			}
		}
	}
	return all
}

func (g *generation) Over() <-chan struct{} { return g.ended }

func (g *generation) Leave() { g.once.Do(func() { close(g.left) }) }

// Commit needs no ctx: kafka-go bounds it by its own time-outs.
func (g *generation) Commit(_ context.Context, offsets map[source.TopicPartition]int64) error {
	if g.hasMissed() {
		return errTopicMissed
	}
	byTopic := map[string]map[int]int64{}
	for tp, offset := range offsets {
		if byTopic[tp.Topic] == nil {
			byTopic[tp.Topic] = map[int]int64{}
		}
		byTopic[tp.Topic][tp.Partition] = offset
	}
	return g.gen.CommitOffsets(byTopic)
}

// Bounds asks twice, because Kafka refuses two questions about a partition in one request.
func (g *generation) Bounds(ctx context.Context, tp source.TopicPartition) (first, end int64, err error) {
	ask := func(r kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		if g.hasMissed() {
			return kafka.PartitionOffsets{}, errTopicMissed
		}
		res, err := g.s.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Addr: g.s.addr, Topics: map[string][]kafka.OffsetRequest{tp.Topic: {r}}})
		if err != nil {
			return kafka.PartitionOffsets{}, g.meets(err)
		}
		for _, p := range res.Topics[tp.Topic] {
			if p.Partition == tp.Partition {
				return p, g.meets(p.Error)
			}
		}
		return kafka.PartitionOffsets{}, fmt.Errorf("the broker said nothing of %s/%d", tp.Topic, tp.Partition)
	}
	low, err := ask(kafka.FirstOffsetOf(tp.Partition))
	if err != nil {
		return 0, 0, err
	}
	high, err := ask(kafka.LastOffsetOf(tp.Partition))
	if err != nil {
		return 0, 0, err
	}
	return low.FirstOffset, high.LastOffset, nil
}
