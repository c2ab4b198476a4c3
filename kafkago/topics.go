package kafkago

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// topicInfo is what we know of a topic.
type topicInfo struct {
	partitions int   // Invariant: at least 1.
	leaders    []int // of the partitions; noLeader where none is known
	readAt     time.Time

	// expired is set by a failure: the next call asks again, and until then the number is good enough for Partition.
	expired atomic.Bool

	// limit is the longest batch that is worth trying, learned from refusals; 0 when nothing was refused yet.
	limit atomic.Int64
}

// noLeader is in place of a leader that is not known.
const noLeader = -1

// leader is the broker that leads a partition.
func (t *topicInfo) leader(partition int) int {
	if partition < len(t.leaders) {
		return t.leaders[partition]
	}
	return noLeader
}

func leadersOf(t kafka.Topic) []int {
	leaders := make([]int, len(t.Partitions))
	for i := range leaders {
		leaders[i] = noLeader
	}
	for _, p := range t.Partitions {
		if p.Leader.Host != "" && p.ID >= 0 && p.ID < len(leaders) {
			leaders[p.ID] = p.Leader.ID
		}
	}
	return leaders
}

// topicAnswer is the answer for one topic of a call: what is known, or why nothing can be sent to it.
type topicAnswer struct {
	info *topicInfo
	err  *publish.Error
}

// topicCache keeps the topics' numbers of partitions. It asks through kafka.Client.Metadata, which kafka-go's Transport
// answers from the layout of the cluster that it reads every few seconds: cheap, never a cause of topics being created
// (its requests have AllowAutoTopicCreation off), and a topic that the cluster does not have is known at once to be
// missing. A new topic is therefore seen after Transport.MetadataTTL at the latest.
type topicCache struct {
	client  *kafka.Client
	ttl     time.Duration
	timeout time.Duration
	mu      sync.RWMutex
	topics  map[string]*topicInfo
}

// known returns what is known of a topic without asking; nil when nothing is.
func (c *topicCache) known(topic string) *topicInfo {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.topics[topic]
}

// expire makes the next call ask for the topic again.
func (c *topicCache) expire(topic string) {
	if t := c.known(topic); t != nil {
		t.expired.Store(true)
	}
}

// lookup answers for every topic of events. It asks once for those that it does not know or no longer believes; when that
// fails, the old number is used where there is one, since numbers hardly ever change, and the others cannot be
// written to for now.
func (c *topicCache) lookup(ctx context.Context, events []holdfast.Event) map[string]topicAnswer {
	answers := make(map[string]topicAnswer, 4)
	var ask []string
	now := time.Now()
	last := ""
	for i := range events {
		topic := events[i].Topic
		if topic == last && i > 0 {
			continue
		}
		last = topic
		if _, done := answers[topic]; done {
			continue
		}
		info := c.known(topic)
		answers[topic] = topicAnswer{info: info}
		if info == nil || info.expired.Load() || now.Sub(info.readAt) >= c.ttl {
			ask = append(ask, topic)
		}
	}
	if len(ask) > 0 {
		c.refresh(ctx, ask, answers)
	}
	return answers
}

// refresh asks for topics and puts what is new into answers and into the cache.
func (c *topicCache) refresh(ctx context.Context, topics []string, answers map[string]topicAnswer) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	res, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: topics})
	if err != nil {
		fault := meaningOf(err).Fault
		for _, topic := range topics {
			if answers[topic].info == nil {
				answers[topic] = topicAnswer{err: notSent(topic, -1, fault, err)}
			}
		}
		return
	}

	found := make(map[string]kafka.Topic, len(res.Topics))
	for _, t := range res.Topics {
		found[t.Name] = t
	}
	readAt := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.topics == nil {
		c.topics = make(map[string]*topicInfo)
	}
	for _, topic := range topics {
		t, ok := found[topic]
		err := t.Error
		if err == nil && (!ok || len(t.Partitions) == 0) {
			err = kafka.UnknownTopicOrPartition
		}
		if err != nil {
			delete(c.topics, topic)
			answers[topic] = topicAnswer{err: missingTopic(topic, err)}
			continue
		}
		info := &topicInfo{partitions: len(t.Partitions), leaders: leadersOf(t), readAt: readAt}
		c.topics[topic] = info
		answers[topic] = topicAnswer{info: info}
	}
}

// missingTopic is the error for a topic that the cluster answers err for. Whatever the code, it concerns the topic and
// no partition of it, unless it is our way in that is shut.
func missingTopic(topic string, err error) *publish.Error {
	fault := meaningOf(err).Fault
	if fault != publish.FaultBroker {
		fault = publish.FaultTopic
	}
	return notSent(topic, -1, fault, fmt.Errorf("%w: create the topic, or grant Describe and Write on it", err))
}
