package franz

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// generation is what this node has of the group, from one Next to Leave.
type generation struct {
	s     *session
	first map[source.TopicPartition]source.Start

	over     chan struct{} // closed when nothing of it may be read any more
	left     chan struct{}
	unread   unreads
	watching sync.WaitGroup

	mu      sync.Mutex
	ended   bool
	gone    bool                                    // it was left
	changes chan source.Change                      // nil until somebody asks for it: any change ends the generation then
	queued  []source.Change                         // Added without starts
	pending chan struct{}                           // holds one when something is queued
	revoked map[source.TopicPartition]chan struct{} // closed when it is released
	ids     map[string][16]byte                     // of the topics, when their partitions were first read
	missed  error                                   // a topic of ours was not there: its offsets may be another's
}

var (
	_ source.Grouped     = (*generation)(nil)
	_ source.Incomplete  = (*generation)(nil)
	_ source.Incremental = (*generation)(nil)
)

func newGeneration(s *session) *generation {
	return &generation{
		s:       s,
		over:    make(chan struct{}),
		left:    make(chan struct{}),
		pending: make(chan struct{}, 1),
		revoked: map[source.TopicPartition]chan struct{}{},
		ids:     map[string][16]byte{},
	}
}

// GroupID names the group.
func (g *generation) GroupID() string { return g.s.g.GroupID }

// MissingTopics are the topics of the group that did not exist when it was last looked.
func (g *generation) MissingTopics() (missing []string) {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	for _, topic := range g.s.g.Topics {
		if g.s.presence != nil && g.s.presence[topic] == 0 {
			missing = append(missing, topic)
		}
	}
	return missing
}

func (g *generation) Assigned() map[source.TopicPartition]source.Start { return g.first }

func (g *generation) Over() <-chan struct{} { return g.over }

// end closes Over. The caller holds the mutex.
func (g *generation) end() {
	if !g.ended {
		g.ended = true
		close(g.over)
	}
}

// Leave gives up all partitions. The group goes on.
func (g *generation) Leave() {
	g.s.mu.Lock()
	if g.s.gen == g {
		g.s.gen = nil
	}
	g.s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end()
	if !g.gone {
		g.gone = true
		close(g.left)
	}
}

// Changes is for an inbox that keeps the partitions that do not move.
func (g *generation) Changes() <-chan source.Change {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changes == nil {
		g.changes = make(chan source.Change)
		go g.pump()
	}
	return g.changes
}

// pump hands out changes, in order, until the generation is left. It asks where to start reading what was added.
func (g *generation) pump() {
	for {
		g.mu.Lock()
		var c source.Change
		some := len(g.queued) > 0
		if some {
			c, g.queued = g.queued[0], g.queued[1:]
		}
		g.mu.Unlock()
		if !some {
			select {
			case <-g.pending:
				continue
			case <-g.left:
				return
			}
		}
		if len(c.Added) > 0 && !g.complete(&c) {
			return
		}
		select {
		case g.changes <- c:
		case <-g.left:
			return
		}
	}
}

// complete asks where to start reading the partitions of a change, until there is an answer, or the generation is left.
func (g *generation) complete(c *source.Change) bool {
	var of []source.TopicPartition
	for tp := range c.Added {
		of = append(of, tp)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-g.left:
			cancel()
		case <-stop:
		}
	}()
	for {
		asking, answered := context.WithTimeout(ctx, fetchTimeout)
		starts, err := g.s.starts(asking, of)
		answered()
		if err == nil {
			c.Added = starts
			return true
		}
		select {
		case <-g.left:
			return false
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// queue hands a change out, or ends the generation if nobody asks for changes. The caller holds the mutex.
func (g *generation) queue(c source.Change) {
	if g.changes == nil || g.ended {
		g.end()
		return
	}
	g.queued = append(g.queued, c)
	select {
	case g.pending <- struct{}{}:
	default:
	}
}

// add notes partitions that the group has given to this node.
func (g *generation) add(all []source.TopicPartition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := source.Change{Added: map[source.TopicPartition]source.Start{}}
	for _, tp := range all {
		c.Added[tp] = source.Start{}
	}
	g.queue(c)
}

// revoke returns when partitions that the group wants back are released.
func (g *generation) revoke(all []source.TopicPartition) {
	g.mu.Lock()
	released := make([]chan struct{}, len(all))
	for i, tp := range all {
		released[i] = make(chan struct{})
		g.revoked[tp] = released[i]
	}
	g.queue(source.Change{Revoked: all})
	g.mu.Unlock()
	for _, ch := range released {
		select {
		case <-ch:
		case <-g.left:
			return
		}
	}
}

// lose returns when the generation is left: the group has given its partitions to others.
func (g *generation) lose([]source.TopicPartition) {
	g.mu.Lock()
	g.end()
	g.mu.Unlock()
	<-g.left
}

// Release lets the group give partitions to others.
func (g *generation) Release(of []source.TopicPartition) {
	g.unread.drop(of)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, tp := range of {
		if ch := g.revoked[tp]; ch != nil {
			close(ch)
			delete(g.revoked, tp)
		}
	}
}

// errTopicMissed is what a generation says that has met a topic that was not there.
var errTopicMissed = errors.New("a topic was missing: it may have been recreated, so its offsets are asked for again")

// missedPause is how long a generation that missed a topic waits before it ends. A broker that has just started may not know its topics
// for a while.
const missedPause = 500 * time.Millisecond

// meets takes note of a topic that is not there, or is another one under its name. Offsets mean nothing in that: this generation reads and
// commits no more, and the next one asks for the group's offsets, which Kafka forgets with a topic.
func (g *generation) meets(err error) error {
	for _, code := range []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID} {
		if errors.Is(err, code) {
			g.mu.Lock()
			first := g.missed == nil
			g.missed = errTopicMissed
			g.mu.Unlock()
			if first {
				time.AfterFunc(missedPause, func() {
					g.mu.Lock()
					defer g.mu.Unlock()
					g.end()
				})
			}
		}
	}
	return err
}

func (g *generation) hasMissed() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.missed
}

// watch looks for new topics now and then, for MissingTopics.
func (g *generation) watch() {
	tick := time.NewTicker(g.s.g.WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = g.s.look(context.Background()) // It is looked again.
		case <-g.left:
			return
		}
	}
}

// idOf is a topic's id, as this generation first met it.
func (g *generation) idOf(topic string, now [16]byte) [16]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, ok := g.ids[topic]
	if !ok {
		id = now
		g.ids[topic] = id
	}
	return id
}

// Commit commits offsets as this member. While the group rebalances it may refuse them for a moment.
func (g *generation) Commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		err := g.commit(ctx, offsets)
		if !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

func (g *generation) commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	if err := g.hasMissed(); err != nil {
		return err
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = g.s.g.GroupID
	req.MemberID, req.Generation = g.s.client.GroupMetadata()
	if g.s.g.InstanceID != "" {
		req.InstanceID = &g.s.g.InstanceID
	}
	at := map[string]int{}
	for tp, offset := range offsets {
		n, ok := at[tp.Topic]
		if !ok {
			info, err := g.s.topic(ctx, place{tp.Topic, tp.Partition})
			if err != nil {
				return g.meets(err)
			}
			n = len(req.Topics)
			at[tp.Topic] = n
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = tp.Topic, g.idOf(tp.Topic, info.id)
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset = int32(tp.Partition), offset
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
	}
	resp, err := req.RequestWith(ctx, g.s.client)
	if err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("commit the offset of %s/%d: %w", t.Topic, p.Partition, g.meets(err))
			}
		}
	}
	return nil
}
