package franz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	// firstAssignment is how long Next waits for partitions after the group has taken the node in: cooperative members give theirs up
	// in a second round. There may be more nodes than partitions, too.
	firstAssignment = 3 * time.Second

	// leaveTimeout bounds each step of leaving the group.
	leaveTimeout = 3 * time.Second
)

// Group is an inbox.Source on franz-go, with cooperative rebalancing: when nodes come and go, only the partitions that move are given
// up, and the others are read on (source.Incremental). All members of the group must rebalance cooperatively. It may be given to
// any number of calls of Consume, one after the other or at the same time: each is a member of the group of its own.
//
// franz-go keeps the membership, and its own consumer is paused. Records are fetched page by page, as the inbox asks for them.
type Group struct {
	opts   []kgo.Opt
	config GroupConfig
}

// NewGroup returns a Group, or one error that names every problem of the options and the configuration. The options say how to reach the
// brokers: each call of Consume makes a client of them. It does not touch the network. What does not fit the inbox is an error of
// Consume.
func NewGroup(opts []kgo.Opt, g GroupConfig) (*Group, error) {
	if err := errors.Join(slices.Concat(optionProblems(opts), g.problems())...); err != nil {
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	g.Topics = slices.Clone(g.Topics)
	return &Group{opts: slices.Clone(opts), config: g}, nil
}

// Open is for inbox.Inbox. It does not touch the network.
func (g *Group) Open(_ context.Context, handover time.Duration) (source.Session, error) {
	config := g.config.withDefaults(handover)
	if err := errors.Join(config.tooShort(handover)...); err != nil {
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	s := &session{g: config, owned: map[source.TopicPartition]bool{}, news: make(chan struct{}, 1)}
	opts := append(config.options(g.opts), kgo.OnPartitionsAssigned(s.onAssigned), kgo.OnPartitionsRevoked(s.onRevoked), kgo.OnPartitionsLost(s.onLost))
	var err error
	if s.client, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("kafka group: %w", err)
	}
	s.topics = topicsOf(s.client, config.WatchInterval, fetchTimeout)
	s.fetcher = &fetcher{client: s.client, committed: !config.ReadUncommitted}
	return s, nil
}

// session is a membership in the group.
type session struct {
	g       GroupConfig
	client  *kgo.Client
	topics  topics
	fetcher *fetcher

	joining  sync.Once
	draining sync.WaitGroup
	news     chan struct{} // holds one when something below has changed

	mu       sync.Mutex
	joined   bool // the group has taken this node in
	owned    map[source.TopicPartition]bool
	gen      *generation    // nil between two
	trouble  error          // of joining, not yet returned by Next
	presence map[string]int // partitions by topic, when they were last looked for
}

// join begins the membership. The client's own consumer stays paused.
func (s *session) join() {
	s.client.PauseFetchTopics(s.g.Topics...)
	s.client.AddConsumeTopics(s.g.Topics...)
	s.draining.Go(func() {
		for { // It has errors of the group only.
			fetches := s.client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			s.mu.Lock()
			for _, e := range fetches.Errors() {
				s.trouble = e.Err
			}
			s.mu.Unlock()
			s.tell()
		}
	})
}

func (s *session) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// partitionsOf lists what franz-go says of partitions.
func partitionsOf(of map[string][]int32) (all []source.TopicPartition) {
	for topic, partitions := range of {
		for _, p := range partitions {
			all = append(all, source.TopicPartition{Topic: topic, Partition: int(p)})
		}
	}
	return all
}

// onAssigned is called after each rebalance with the partitions that are new.
func (s *session) onAssigned(_ context.Context, _ *kgo.Client, added map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined = true
	all := partitionsOf(added)
	for _, tp := range all {
		s.owned[tp] = true
	}
	if s.gen != nil && len(all) > 0 {
		s.gen.add(all)
	}
	s.tell()
}

// onRevoked returns when the inbox has released what the group wants back. Heartbeats go on meanwhile.
func (s *session) onRevoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	s.giveUp(partitionsOf(revoked), (*generation).revoke)
}

// onLost returns when the inbox has let go of partitions that belong to others by now.
func (s *session) onLost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	s.giveUp(partitionsOf(lost), (*generation).lose)
}

func (s *session) giveUp(all []source.TopicPartition, how func(*generation, []source.TopicPartition)) {
	if len(all) == 0 {
		return
	}
	s.mu.Lock()
	gen := s.gen
	for _, tp := range all {
		delete(s.owned, tp)
	}
	s.mu.Unlock()
	if gen != nil {
		how(gen, all)
	}
}

// Next joins the group, and returns what this node has of it.
func (s *session) Next(ctx context.Context) (source.Generation, error) {
	s.joining.Do(s.join)
	patience := time.NewTimer(firstAssignment)
	defer patience.Stop()
	patient := true
	for {
		s.mu.Lock()
		if s.joined && (len(s.owned) > 0 || !patient) {
			break
		}
		s.mu.Unlock()
		select {
		case <-s.news:
			if err := s.takeTrouble(); err != nil {
				return nil, err
			}
		case <-patience.C:
			patient = false
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	given := slices.Collect(maps.Keys(s.owned))
	gen := newGeneration(s)
	s.gen = gen
	s.mu.Unlock()
	err := s.look(ctx)
	if err == nil {
		gen.first, err = s.starts(ctx, given)
	}
	if err != nil {
		gen.Leave()
		return nil, err
	}
	gen.watching.Go(gen.watch)
	return gen, nil
}

// takeTrouble returns what keeps the group from taking this node in, once.
func (s *session) takeTrouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.trouble
	s.trouble = nil
	switch {
	case err == nil || s.joined:
		return nil
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("kafka group: %w: session timeout is %s: the broker refuses it (group.min.session.timeout.ms, group.max.session.timeout.ms); "+
			"change GroupConfig.SessionTimeout or the broker's settings: %w", source.ErrConfiguration, s.g.SessionTimeout, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return fmt.Errorf("join the group: a member of it does not rebalance cooperatively: stop those, and start nodes of this package: %w", err)
	}
	return fmt.Errorf("join the group: %w", err)
}

// starts says where to start reading partitions.
func (s *session) starts(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]source.Start, error) {
	all := make(map[source.TopicPartition]source.Start, len(of))
	if len(of) == 0 {
		return all, nil
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = true
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = s.g.GroupID
	group.MemberEpoch = -1
	byTopic := map[string][]int32{}
	for _, tp := range of {
		byTopic[tp.Topic] = append(byTopic[tp.Topic], int32(tp.Partition))
	}
	names := map[[16]byte]string{}
	for topic, partitions := range byTopic {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		info, err := s.topic(ctx, place{topic, nowhere})
		if err != nil {
			return nil, err
		}
		t.Topic, t.TopicID, t.Partitions = topic, info.id, partitions
		names[t.TopicID] = topic
		group.Topics = append(group.Topics, t)
	}
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, s.client)
	if err != nil {
		return nil, fmt.Errorf("ask for committed offsets: %w", err)
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, fmt.Errorf("ask for committed offsets: %w", err)
		}
		for _, t := range g.Topics {
			if t.Topic == "" {
				t.Topic = names[t.TopicID]
			}
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return nil, fmt.Errorf("ask for the committed offset of %s/%d: %w", t.Topic, p.Partition, err)
				}
				start := source.Start{
					Committed:      p.Offset,
					AdoptCommitted: s.g.AdoptCommitted,
					SkipDeleted:    s.g.SkipDeleted,
				}
				if p.Offset < 0 {
					start.Committed = source.NoOffset
				}
				all[source.TopicPartition{Topic: t.Topic, Partition: int(p.Partition)}] = start
			}
		}
	}
	for _, tp := range of {
		if _, ok := all[tp]; !ok {
			return nil, fmt.Errorf("ask for committed offsets: the broker said nothing of %s/%d", tp.Topic, tp.Partition)
		}
	}
	return all, nil
}

// topic is what is known of the topic of a partition.
func (s *session) topic(ctx context.Context, at place) (*topicInfo, error) {
	a := s.topics.at(ctx, at)
	if a.err != nil {
		return nil, fmt.Errorf("topic %s: %w", at.topic, a.err.Err)
	}
	return a.info, nil
}

// look counts the partitions of the group's topics; one that is not there has none.
func (s *session) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	found, err := describe(ctx, s.client, s.g.Topics)
	if err != nil {
		return fmt.Errorf("ask for topics: %w", err)
	}
	counts := map[string]int{}
	for topic, d := range found {
		if d.err != nil && !errors.Is(d.err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("topic %s: %w", topic, d.err)
		}
		counts[topic] = len(d.leaders)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.presence = counts
	return nil
}

// Close leaves the group, unless this node is a static member.
func (s *session) Close() {
	s.mu.Lock()
	gen := s.gen
	s.mu.Unlock()
	if gen != nil { // A caller that has not left it gives it up by this.
		gen.Leave()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	member, _ := s.client.GroupMetadata()
	err := s.client.LeaveGroupContext(ctx)
	if err != nil && member != "" && s.g.InstanceID == "" {
		// franz-go waits for an answer of the group before it leaves, and the group may be waiting for others.
		again, done := context.WithTimeout(context.Background(), leaveTimeout)
		defer done()
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = s.g.GroupID, member
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = member
		req.Members = append(req.Members, m)
		_, _ = req.RequestWith(again, s.client) // If it fails, the group misses the member after SessionTimeout.
	}
	s.client.Close()
	s.draining.Wait()
}
