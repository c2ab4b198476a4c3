package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// This file and its two neighbours are all that knows kafka-go. ConsumerGroup does the membership; records are fetched
// without Reader, which hands out stale messages after a rebalance, jumps over deleted records in silence, and commits
// past gaps.

const (
	fetchBytes   = 4 << 20
	fetchMost    = 1 << 30 // how far a fetch grows for a record that did not fit
	fetchWait    = 500 * time.Millisecond
	fetchTimeout = 30 * time.Second
)

type kafkaSource struct {
	g         KafkaGroup
	addr      net.Addr
	transport *kafka.Transport
	client    *kafka.Client
	group     *kafka.ConsumerGroup

	mu     sync.Mutex
	counts map[string]int // partitions by topic, as seen before this generation's members joined

	blind atomic.Pointer[error] // why we, who led the group, could not see which partitions there are
}

func openKafka(ctx context.Context, g KafkaGroup) (*kafkaSource, error) {
	dialer := &net.Dialer{Timeout: or(g.Dialer.Timeout, 10*time.Second), Deadline: g.Dialer.Deadline, LocalAddr: g.Dialer.LocalAddr,
		FallbackDelay: g.Dialer.FallbackDelay, KeepAlive: g.Dialer.KeepAlive}
	dial := dialer.DialContext
	if g.Dialer.DialFunc != nil {
		dial = g.Dialer.DialFunc
	}
	s := &kafkaSource{g: g, addr: kafka.TCP(g.Brokers...)}
	s.transport = &kafka.Transport{Dial: dial, TLS: g.Dialer.TLS, SASL: g.Dialer.SASLMechanism, ClientID: g.Dialer.ClientID,
		IdleTimeout: time.Minute, MetadataTTL: min(g.WatchInterval, 5*time.Second)}
	s.client = &kafka.Client{Addr: s.addr, Transport: s.transport, Timeout: fetchTimeout}
	// Before the group is joined: so a partition that is added while it forms makes a difference afterwards.
	s.counts, _ = s.partitions(ctx)
	var err error
	s.group, err = kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: g.GroupID, Brokers: g.Brokers, Dialer: g.Dialer, Topics: g.Topics,
		HeartbeatInterval: g.HeartbeatInterval, SessionTimeout: g.SessionTimeout, RebalanceTimeout: g.RebalanceTimeout,
		JoinGroupBackoff: time.Second, StartOffset: kafka.FirstOffset,
		GroupBalancers: []kafka.GroupBalancer{balancer{kafka.RangeGroupBalancer{}, s}, balancer{kafka.RoundRobinGroupBalancer{}, s}},
	})
	if err != nil {
		s.transport.CloseIdleConnections()
		return nil, err
	}
	return s, nil
}

// partitions counts the partitions of each of our topics; one that is not there has none.
func (s *kafkaSource) partitions(ctx context.Context) (map[string]int, error) {
	return s.count(ctx, s.g.Topics)
}

func (s *kafkaSource) count(ctx context.Context, topics []string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	m, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Addr: s.addr, Topics: topics})
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int, len(m.Topics))
	for _, t := range m.Topics {
		if t.Error != nil && !errors.Is(t.Error, kafka.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("topic %s: %w", t.Name, t.Error)
		}
		counts[t.Name] = len(t.Partitions)
	}
	return counts, nil
}

// balancer assigns partitions as kafka-go's balancers do. kafka-go asks for the partitions of all topics at once, and
// takes the answer that one topic is unknown for "there are no partitions": the group would read nothing, without a
// word, for as long as one of its topics is missing or a broker that has just started does not know it yet.
type balancer struct {
	kafka.GroupBalancer
	s *kafkaSource
}

func (b balancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	if len(partitions) == 0 {
		var err error
		if partitions, err = b.s.partitionsOf(members); err != nil {
			b.s.blind.Store(&err) // There is no way to fail here: next does it, and the group assigns again.
		}
	}
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// partitionsOf are the partitions of the topics that exist. Members may name other topics than we do, in a rolling deploy.
func (s *kafkaSource) partitionsOf(members []kafka.GroupMember) ([]kafka.Partition, error) {
	var topics []string
	for _, m := range members {
		topics = append(topics, m.Topics...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	counts, err := s.count(ctx, topics)
	if err != nil {
		return nil, err
	}
	var all []kafka.Partition
	for _, topic := range topics {
		for id := range counts[topic] {
			all = append(all, kafka.Partition{Topic: topic, ID: id})
		}
	}
	return all, nil
}

func (s *kafkaSource) next(ctx context.Context) (generation, error) {
	gen, err := s.group.Next(ctx)
	if errors.Is(err, kafka.InvalidSessionTimeout) {
		return nil, s.sessionRefused(ctx)
	}
	if err != nil {
		return nil, err
	}
	if blind := s.blind.Swap(nil); blind != nil {
		gen.Start(func(context.Context) {}) // Returning ends the generation.
		return nil, fmt.Errorf("assign partitions: %w", *blind)
	}
	k := &kafkaGeneration{s: s, gen: gen, ended: make(chan struct{}), left: make(chan struct{}), missed: make(chan struct{})}
	gen.Start(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			close(k.ended)
			<-k.left // The group goes on only when our partitions are let go of.
		case <-k.left: // We gave up before the group asked. Returning ends the generation.
		}
	})
	gen.Start(k.watch)
	return k, nil
}

func (s *kafkaSource) close() {
	_ = s.group.Close()
	s.transport.CloseIdleConnections()
}

type kafkaGeneration struct {
	s     *kafkaSource
	gen   *kafka.Generation
	ended chan struct{}
	left  chan struct{}
	once  sync.Once

	// missed is closed when a broker did not know a topic of ours. The one that it knows next may be another, made again
	// under the name, in which our offsets mean nothing. So this generation reads and commits no more: the next one asks
	// for the group's offsets, which Kafka forgets with a topic, and for the log's bounds.
	missed chan struct{}
	miss   sync.Once
}

// errTopicMissed is what a generation says that has met a topic that was not there.
var errTopicMissed = errors.New("a topic was missing: it may have been made again, so the group is joined anew")

// missedPause is how long a generation that missed a topic waits before it ends. A broker that has just started may not
// know its topics for a while.
const missedPause = 500 * time.Millisecond

// meets takes note of a topic that is not there.
func (k *kafkaGeneration) meets(err error) error {
	if errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) {
		k.miss.Do(func() { close(k.missed) })
	}
	return err
}

func (k *kafkaGeneration) hasMissed() bool {
	select {
	case <-k.missed:
		return true
	default:
		return false
	}
}

// watch ends the generation when topics have other partitions than before, and when one was missing for a moment. kafka-go's own watcher ends it at once, and
// again and again, while a topic is missing.
func (k *kafkaGeneration) watch(ctx context.Context) {
	tick := time.NewTicker(k.s.g.WatchInterval)
	defer tick.Stop()
	for {
		now, err := k.s.partitions(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			k.s.mu.Lock()
			before := k.s.counts
			k.s.counts = now
			k.s.mu.Unlock()
			for topic, n := range now {
				if before != nil && before[topic] != n {
					return
				}
			}
		}
		select {
		case <-tick.C:
		case <-k.missed:
			_ = pause(ctx, missedPause)
			return
		case <-ctx.Done():
			return
		}
	}
}

func (k *kafkaGeneration) assigned() map[topicPartition]int64 {
	all := map[topicPartition]int64{}
	for topic, parts := range k.gen.Assignments {
		for _, p := range parts {
			offset := p.Offset
			if offset < 0 { // kafka-go says FirstOffset where nothing was committed
				offset = noOffset
			}
			all[topicPartition{topic, p.ID}] = offset
		}
	}
	return all
}

func (k *kafkaGeneration) over() <-chan struct{} { return k.ended }

func (k *kafkaGeneration) leave() { k.once.Do(func() { close(k.left) }) }

func (k *kafkaGeneration) commit(offsets map[topicPartition]int64) error {
	if k.hasMissed() {
		return errTopicMissed
	}
	byTopic := map[string]map[int]int64{}
	for tp, offset := range offsets {
		if byTopic[tp.topic] == nil {
			byTopic[tp.topic] = map[int]int64{}
		}
		byTopic[tp.topic][tp.partition] = offset
	}
	return k.gen.CommitOffsets(byTopic)
}

// bounds asks twice, because Kafka refuses two questions about a partition in one request.
func (k *kafkaGeneration) bounds(ctx context.Context, tp topicPartition) (first, end int64, err error) {
	ask := func(r kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		if k.hasMissed() {
			return kafka.PartitionOffsets{}, errTopicMissed
		}
		res, err := k.s.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Addr: k.s.addr, Topics: map[string][]kafka.OffsetRequest{tp.topic: {r}}})
		if err != nil {
			return kafka.PartitionOffsets{}, k.meets(err)
		}
		for _, p := range res.Topics[tp.topic] {
			if p.Partition == tp.partition {
				return p, k.meets(p.Error)
			}
		}
		return kafka.PartitionOffsets{}, fmt.Errorf("the broker said nothing of %s/%d", tp.topic, tp.partition)
	}
	low, err := ask(kafka.FirstOffsetOf(tp.partition))
	if err != nil {
		return 0, 0, err
	}
	high, err := ask(kafka.LastOffsetOf(tp.partition))
	if err != nil {
		return 0, 0, err
	}
	return low.FirstOffset, high.LastOffset, nil
}
