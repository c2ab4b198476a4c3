package kafkago

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	fetchBytes   = 4 << 20 // of one fetch, unless its first batch is larger
	fetchMost    = 1 << 30 // how far a fetch grows for a batch that a broker cut off
	fetchWait    = 500 * time.Millisecond
	fetchTimeout = 30 * time.Second
)

// Group is an inbox.Source on kafka-go's ConsumerGroup. It may be given to any number of calls of Consume, one after the
// other or at the same time: each is a member of the group of its own.
//
// Records are fetched without kafka-go's Reader, which hands out stale messages after a rebalance, jumps over deleted
// records in silence, and commits past gaps.
type Group struct {
	connection Connection
	config     GroupConfig
}

// NewGroup returns a Group, or one error that names every problem of the configuration. It does not touch the network.
// What does not fit the inbox (time-outs that are too short for its StopTimeout and Grace) is an error of Consume.
func NewGroup(c Connection, g GroupConfig) (*Group, error) {
	if err := errors.Join(append(c.problems(), g.problems()...)...); err != nil {
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	c.Brokers, g.Topics = slices.Clone(c.Brokers), slices.Clone(g.Topics)
	return &Group{connection: c, config: g}, nil
}

// openTimeout is how long Open waits for the brokers. Then the log says what the group waits for.
const openTimeout = 3 * time.Second

// Open is for inbox.Inbox. It waits for the brokers for at most 3 s, and goes on without an answer.
func (g *Group) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	config := g.config.withDefaults(handover)
	direct := net.Dialer{Timeout: joinTimeout}
	transportOf := func(topics []string) (own *kafka.Transport, use kafka.RoundTripper) {
		own, use = g.connection.transport(direct.DialContext, min(config.WatchInterval, 5*time.Second))
		own.IdleTimeout = time.Minute
		own.MetadataTopics = topics // Each member would ask for those of the whole cluster otherwise, every few seconds.
		return own, use
	}
	own, use := transportOf(config.Topics)
	if err := errors.Join(append(config.tooShort(handover), transportProblems(use)...)...); err != nil {
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	clientID := g.connection.clientID()
	s := &session{g: config, addr: kafka.TCP(g.connection.Brokers...), own: own, transport: use,
		clientID: clientID, unpacking: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))}
	s.client = &kafka.Client{Addr: s.addr, Transport: use, Timeout: fetchTimeout}
	s.others.open = func(topics []string) (*kafka.Transport, *kafka.Client) {
		own, use := transportOf(topics)
		return own, &kafka.Client{Addr: s.addr, Transport: use, Timeout: fetchTimeout}
	}
	dials := newDials(clientID)
	s.leaver = newLeaver(config.GroupID, &kafka.Client{
		Addr:      s.addr,
		Transport: own,
		Timeout:   leaveTimeout,
	}, dials, config.SessionTimeout)
	asking, answered := context.WithTimeout(ctx, openTimeout)
	s.counts, _ = s.count(asking, config.Topics)
	answered()
	var err error
	s.group, err = kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                config.GroupID,
		Brokers:           g.connection.Brokers,
		Dialer:            dials.name(g.connection.dialer()),
		Topics:            config.Topics,
		HeartbeatInterval: config.HeartbeatInterval,
		SessionTimeout:    config.SessionTimeout,
		RebalanceTimeout:  config.RebalanceTimeout,
		JoinGroupBackoff:  250 * time.Millisecond,
		StartOffset:       kafka.FirstOffset,
		GroupBalancers:    []kafka.GroupBalancer{balancer{kafka.RangeGroupBalancer{}, s}, balancer{kafka.RoundRobinGroupBalancer{}, s}},
	})
	if err != nil {
		own.CloseIdleConnections()
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	ctx, s.stopLeaving = context.WithCancel(context.WithoutCancel(ctx))
	s.leaving.Go(func() { s.leaver.run(ctx) })
	return s, nil
}

// session is a membership in the group.
type session struct {
	g           GroupConfig
	addr        net.Addr
	own         *kafka.Transport // beneath what Connection.Wrap made of it
	transport   kafka.RoundTripper
	client      *kafka.Client
	others      others
	group       *kafka.ConsumerGroup
	clientID    string
	leaver      *leaver
	leaving     sync.WaitGroup     // of its run
	stopLeaving context.CancelFunc // ends it
	unpacking   chan struct{}      // full while so many partitions unpack: a codec takes memory, too

	mu       sync.Mutex
	counts   map[string]int // partitions by topic, when they were last looked for
	assigned map[string]int // if we lead the group: partitions by topic, of the topics of all members, as we have assigned by

	blind atomic.Pointer[error] // why we, who led the group, could not see which partitions there are
}

// look counts the partitions of our topics, and of those of all members if we lead the group. It says whether they differ from what the
// group was assigned by.
func (s *session) look(ctx context.Context) (differs bool) {
	s.mu.Lock()
	assigned := s.assigned // Only another join replaces it.
	s.mu.Unlock()
	topics := slices.Clone(s.g.Topics)
	for topic := range assigned {
		if !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	now, err := s.count(ctx, topics)
	if err != nil {
		return false // It is looked again.
	}
	s.mu.Lock()
	s.counts = now
	s.mu.Unlock()
	return assigned != nil && !maps.Equal(now, assigned)
}

// count counts the partitions of topics; one that is not there has none.
func (s *session) count(ctx context.Context, topics []string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var others []string
	for _, topic := range topics {
		if !slices.Contains(s.g.Topics, topic) {
			others = append(others, topic)
		}
	}
	counts := make(map[string]int, len(topics))
	if err := s.countOn(ctx, s.client, s.g.Topics, counts); err != nil {
		return nil, err
	}
	if len(others) > 0 {
		slices.Sort(others)
		if err := s.countOn(ctx, s.others.of(others), others, counts); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func (s *session) countOn(ctx context.Context, client *kafka.Client, topics []string, counts map[string]int) error {
	m, err := client.Metadata(ctx, &kafka.MetadataRequest{Addr: s.addr, Topics: topics})
	if err != nil {
		return err
	}
	for _, t := range m.Topics {
		if t.Error != nil && !errors.Is(t.Error, kafka.UnknownTopicOrPartition) {
			return fmt.Errorf("topic %s: %w", t.Name, t.Error)
		}
		counts[t.Name] = len(t.Partitions)
	}
	return nil
}

// others asks for topics that only other members of the group name. A transport knows none but its MetadataTopics, and those of a transport
// that is in use cannot change.
type others struct {
	open func(topics []string) (own *kafka.Transport, client *kafka.Client)

	mu     sync.Mutex
	topics []string // in order
	own    *kafka.Transport
	client *kafka.Client
}

func (o *others) of(topics []string) *kafka.Client {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.topics, topics) {
		o.closeIdle()
		o.topics = topics
		o.own, o.client = o.open(topics)
	}
	return o.client
}

func (o *others) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closeIdle()
}

func (o *others) closeIdle() {
	if o.own != nil {
		o.own.CloseIdleConnections()
	}
}

func (s *session) Next(ctx context.Context) (source.Generation, error) {
	gen, err := s.group.Next(ctx)
	if ctx.Err() == nil && hasLostMember(err) {
		s.leaver.losesAll()
	}
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
	k := &generation{
		s:      s,
		gen:    gen,
		ended:  make(chan struct{}),
		left:   make(chan struct{}),
		missed: make(chan struct{}),
	}
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

func (s *session) Close() {
	s.stopLeaving()
	s.leaving.Wait()
	_ = s.group.Close()
	s.own.CloseIdleConnections()
	s.others.close()
}
