package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	fetchapi "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file is all that knows kafka-go. It uses ConsumerGroup for the membership, and fetches by itself: Reader hands
// out stale messages after a rebalance, jumps over deleted records in silence, and commits past gaps.

// KafkaGroup says which topics to consume as which consumer group.
type KafkaGroup struct {
	// Brokers are addresses, host:port, of which one must answer. Required.
	Brokers []string

	// GroupID names the consumer group. Required. Use one group for one Config.Consumer.
	GroupID string

	// Topics are what the group consumes. Required. Topics and partitions that are added later are picked up.
	Topics []string

	// Dialer is how brokers are reached: TLS, SASL, time-outs. Defaults to kafka.DefaultDialer.
	Dialer *kafka.Dialer

	// SessionTimeout is after how long without a heartbeat the group takes this node's partitions away. Defaults to 30 s.
	SessionTimeout time.Duration

	// HeartbeatInterval is how often the group hears of this node; at most a third of SessionTimeout. Defaults to a tenth
	// of SessionTimeout.
	HeartbeatInterval time.Duration

	// RebalanceTimeout is how long the group waits for its members to let go of their partitions. It must be longer than
	// Config.Stop and Config.Grace together. Defaults to these and 15 s, at least 30 s.
	RebalanceTimeout time.Duration

	// WatchInterval is how often new partitions and topics are looked for. Defaults to 5 s.
	WatchInterval time.Duration

	// ReadUncommitted also takes in records of Kafka transactions that are still open or were aborted.
	ReadUncommitted bool

	// AdoptCommitted starts at the group's committed offset where Postgres has no position yet: for a group that another
	// program has consumed for so far. Otherwise a partition without a position is read from its first offset, since
	// nothing in this database shows that anything was handled.
	AdoptCommitted bool

	// SkipDeleted goes on behind records that Kafka deleted before they were handled. Otherwise Consume returns
	// ErrOffsetOutOfRange. Set it for one start, when the loss was looked at.
	SkipDeleted bool
}

func (g KafkaGroup) withDefaults(c Config) KafkaGroup {
	g.Dialer = or(g.Dialer, kafka.DefaultDialer)
	g.SessionTimeout = or(g.SessionTimeout, 30*time.Second)
	g.HeartbeatInterval = or(g.HeartbeatInterval, g.SessionTimeout/10)
	g.RebalanceTimeout = or(g.RebalanceTimeout, max(30*time.Second, c.Stop+c.Grace+15*time.Second))
	g.WatchInterval = or(g.WatchInterval, 5*time.Second)
	return g
}

func (g KafkaGroup) validate(c Config) error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(g.Brokers) == 0 {
		bad("brokers is empty: give the address, host:port, of at least one broker")
	}
	for _, b := range g.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("broker is %s: it must be host:port", excerpt(b))
		}
	}
	if err := checkText("group id", g.GroupID, 1, 255); err != nil {
		bad("%w: name the consumer group, the same on all nodes", err)
	}
	if len(g.Topics) == 0 {
		bad("topics is empty: name at least one topic")
	}
	for i, topic := range g.Topics {
		if !topicName.MatchString(topic) || len(topic) > 249 {
			bad("topic is %s: it must be a Kafka topic's name, of letters, digits, '.', '_' and '-', at most 249", excerpt(topic))
		}
		if slices.Contains(g.Topics[:i], topic) {
			bad("topic %s is named twice", excerpt(topic))
		}
	}
	if g.SessionTimeout < 100*time.Millisecond {
		bad("session timeout is %s: it must be at least 100ms, and what the broker allows (group.min.session.timeout.ms)", g.SessionTimeout)
	}
	if g.HeartbeatInterval <= 0 || g.HeartbeatInterval > g.SessionTimeout/3 {
		bad("heartbeat interval is %s: it must be above 0 and at most a third of the session timeout, %s", g.HeartbeatInterval, g.SessionTimeout)
	}
	if g.RebalanceTimeout <= c.Stop+c.Grace {
		bad("rebalance timeout is %s: it must be longer than stop and grace together, %s", g.RebalanceTimeout, c.Stop+c.Grace)
	}
	if g.WatchInterval < 10*time.Millisecond {
		bad("watch interval is %s: it must be at least 10ms", g.WatchInterval)
	}
	return errors.Join(problems...)
}

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

// fetch speaks the protocol itself, because Client.Fetch leaves out which transactions were aborted, and where batches
// begin.
func (k *kafkaGeneration) fetch(ctx context.Context, tp topicPartition, offset int64) (page, error) {
	isolation := kafka.ReadCommitted
	if k.s.g.ReadUncommitted {
		isolation = kafka.ReadUncommitted
	}
	for size := int32(fetchBytes); ; size *= 2 {
		if k.hasMissed() {
			return page{}, errTopicMissed
		}
		p, err := k.fetchOnce(ctx, tp, offset, isolation, size)
		if err != nil {
			return page{}, k.meets(err)
		}
		batches := batchesOf(p.RecordSet.Records)
		end := p.HighWatermark
		if isolation == kafka.ReadCommitted && p.LastStableOffset >= 0 {
			end = min(end, p.LastStableOffset)
		}
		if len(batches) == 0 {
			if end > offset && size < fetchMost { // The first batch was cut off: it is larger than what we asked for.
				continue
			}
			return page{next: offset}, nil
		}
		return readBatches(batches, p.AbortedTransactions, isolation, offset)
	}
}

func (k *kafkaGeneration) fetchOnce(ctx context.Context, tp topicPartition, offset int64, isolation kafka.IsolationLevel, size int32) (*fetchapi.ResponsePartition, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	m, err := k.s.transport.RoundTrip(ctx, k.s.addr, &fetchapi.Request{
		ReplicaID: -1, MaxWaitTime: int32(fetchWait.Milliseconds()), MinBytes: 1, MaxBytes: size,
		IsolationLevel: int8(isolation), SessionID: 0, SessionEpoch: -1,
		Topics: []fetchapi.RequestTopic{{Topic: tp.topic, Partitions: []fetchapi.RequestPartition{{
			Partition: int32(tp.partition), CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: size,
		}}}},
	})
	if err != nil {
		return nil, err
	}
	res, ok := m.(*fetchapi.Response)
	if !ok {
		return nil, fmt.Errorf("the broker answered a fetch with a %T", m)
	}
	code := res.ErrorCode
	var p *fetchapi.ResponsePartition
	if len(res.Topics) > 0 && len(res.Topics[0].Partitions) > 0 {
		p = &res.Topics[0].Partitions[0]
		code = or(code, p.ErrorCode)
	}
	switch {
	case kafka.Error(code) == kafka.OffsetOutOfRange:
		return nil, fmt.Errorf("%w: %w", ErrOffsetOutOfRange, kafka.OffsetOutOfRange)
	case code != 0:
		return nil, kafka.Error(code)
	case p == nil:
		return nil, fmt.Errorf("the broker said nothing of %s/%d", tp.topic, tp.partition)
	}
	return p, nil
}

func batchesOf(r protocol.RecordReader) []protocol.RecordReader {
	switch r := r.(type) {
	case nil:
		return nil
	case *protocol.RecordStream:
		return r.Records
	default:
		return []protocol.RecordReader{r}
	}
}

// readBatches copies the records out, and leaves out control records and those of aborted transactions. Every batch is
// read to its end, which gives its memory back.
func readBatches(batches []protocol.RecordReader, aborted []fetchapi.ResponseTransaction, isolation kafka.IsolationLevel, offset int64) (page, error) {
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b fetchapi.ResponseTransaction) int { return int(min(max(a.FirstOffset-b.FirstOffset, -1), 1)) })
	dropping := map[int64]bool{} // producers whose transaction, as far as we have read, was aborted
	pg := page{next: offset}
	for _, batch := range batches {
		drop := false
		switch b := batch.(type) {
		case *protocol.ControlBatch:
			for {
				c, err := b.ReadControlRecord()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					return page{}, fmt.Errorf("read control record: %w", err)
				}
				if c.Type == 0 { // ABORT
					delete(dropping, b.ProducerID)
				}
				pg.next = max(pg.next, c.Offset+1)
			}
			continue
		case *protocol.RecordBatch:
			for len(aborted) > 0 && aborted[0].FirstOffset <= b.BaseOffset {
				dropping[aborted[0].ProducerID] = true
				aborted = aborted[1:]
			}
			drop = isolation == kafka.ReadCommitted && b.Attributes.Transactional() && dropping[b.ProducerID]
		}
		for {
			r, err := batch.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return page{}, fmt.Errorf("read record: %w", err)
			}
			rec, err := copied(r)
			if err != nil {
				return page{}, fmt.Errorf("read record: %w", err)
			}
			if rec.offset < pg.next { // A batch may begin before the offset that was asked for.
				continue
			}
			pg.next = rec.offset + 1
			if !drop {
				pg.records = append(pg.records, rec)
			}
		}
	}
	if pg.next == offset {
		// The batch that holds the offset has no record there, nor later: compaction took it. On to the next offset.
		pg.next = offset + 1
	}
	return pg, nil
}

// copied takes a record out of kafka-go's shared pages, and gives those back.
func copied(r *protocol.Record) (record, error) {
	rec := record{offset: r.Offset, at: r.Time}
	var err error
	if r.Key != nil {
		defer r.Key.Close()
		if rec.key, err = protocol.ReadAll(r.Key); err != nil {
			return rec, err
		}
	}
	if r.Value != nil {
		defer r.Value.Close()
		if rec.value, err = protocol.ReadAll(r.Value); err != nil {
			return rec, err
		}
	}
	if len(r.Headers) > 0 {
		rec.headers = make([]wire.Header, len(r.Headers))
		for i, h := range r.Headers {
			rec.headers[i] = wire.Header(h)
		}
	}
	return rec, nil
}
