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
	return &generation{s: s, over: make(chan struct{}), left: make(chan struct{}), pending: make(chan struct{}, 1),
		revoked: map[source.TopicPartition]chan struct{}{}, ids: map[string][16]byte{}}
}

// GroupID names the group.
func (k *generation) GroupID() string { return k.s.g.GroupID }

// MissingTopics are the topics of the group that did not exist when it was last looked.
func (k *generation) MissingTopics() (missing []string) {
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	for _, topic := range k.s.g.Topics {
		if k.s.presence != nil && k.s.presence[topic] == 0 {
			missing = append(missing, topic)
		}
	}
	return missing
}

func (k *generation) Assigned() map[source.TopicPartition]source.Start { return k.first }

func (k *generation) Over() <-chan struct{} { return k.over }

// end closes Over. The caller holds the mutex.
func (k *generation) end() {
	if !k.ended {
		k.ended = true
		close(k.over)
	}
}

// Leave gives up all partitions. The group goes on.
func (k *generation) Leave() {
	k.s.mu.Lock()
	if k.s.gen == k {
		k.s.gen = nil
	}
	k.s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end()
	if !k.gone {
		k.gone = true
		close(k.left)
	}
}

// Changes is for an inbox that keeps the partitions that do not move.
func (k *generation) Changes() <-chan source.Change {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes == nil {
		k.changes = make(chan source.Change)
		go k.pump()
	}
	return k.changes
}

// pump hands out changes, in order, until the generation is left. It asks where to start reading what was added.
func (k *generation) pump() {
	for {
		k.mu.Lock()
		var c source.Change
		some := len(k.queued) > 0
		if some {
			c, k.queued = k.queued[0], k.queued[1:]
		}
		k.mu.Unlock()
		if !some {
			select {
			case <-k.pending:
				continue
			case <-k.left:
				return
			}
		}
		if len(c.Added) > 0 && !k.complete(&c) {
			return
		}
		select {
		case k.changes <- c:
		case <-k.left:
			return
		}
	}
}

// complete asks where to start reading the partitions of a change, until there is an answer, or the generation is left.
func (k *generation) complete(c *source.Change) bool {
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
		case <-k.left:
			cancel()
		case <-stop:
		}
	}()
	for {
		asking, answered := context.WithTimeout(ctx, fetchTimeout)
		starts, err := k.s.starts(asking, of)
		answered()
		if err == nil {
			c.Added = starts
			return true
		}
		select {
		case <-k.left:
			return false
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// queue hands a change out, or ends the generation if nobody asks for changes. The caller holds the mutex.
func (k *generation) queue(c source.Change) {
	if k.changes == nil || k.ended {
		k.end()
		return
	}
	k.queued = append(k.queued, c)
	select {
	case k.pending <- struct{}{}:
	default:
	}
}

// add notes partitions that the group has given to this node.
func (k *generation) add(all []source.TopicPartition) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := source.Change{Added: map[source.TopicPartition]source.Start{}}
	for _, tp := range all {
		c.Added[tp] = source.Start{}
	}
	k.queue(c)
}

// revoke returns when partitions that the group wants back are released.
func (k *generation) revoke(all []source.TopicPartition) {
	k.mu.Lock()
	released := make([]chan struct{}, len(all))
	for i, tp := range all {
		released[i] = make(chan struct{})
		k.revoked[tp] = released[i]
	}
	k.queue(source.Change{Revoked: all})
	k.mu.Unlock()
	for _, ch := range released {
		select {
		case <-ch:
		case <-k.left:
			return
		}
	}
}

// lose returns when the generation is left: the group has given its partitions to others.
func (k *generation) lose([]source.TopicPartition) {
	k.mu.Lock()
	k.end()
	k.mu.Unlock()
	<-k.left
}

// Release lets the group give partitions to others.
func (k *generation) Release(of []source.TopicPartition) {
	k.unread.drop(of)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, tp := range of {
		if ch := k.revoked[tp]; ch != nil {
			close(ch)
			delete(k.revoked, tp)
		}
	}
}

// errTopicMissed is what a generation says that has met a topic that was not there.
var errTopicMissed = errors.New("a topic was missing: it may have been made again, so its offsets are asked for anew")

// missedPause is how long a generation that missed a topic waits before it ends. A broker that has just started may not know its topics
// for a while.
const missedPause = 500 * time.Millisecond

// meets takes note of a topic that is not there, or is another one under its name. Offsets mean nothing in that: this generation reads and
// commits no more, and the next one asks for the group's offsets, which Kafka forgets with a topic.
func (k *generation) meets(err error) error {
	for _, code := range []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.InconsistentTopicID} {
		if errors.Is(err, code) {
			k.mu.Lock()
			first := k.missed == nil
			k.missed = errTopicMissed
			k.mu.Unlock()
			if first {
				time.AfterFunc(missedPause, func() {
					k.mu.Lock()
					defer k.mu.Unlock()
					k.end()
				})
			}
		}
	}
	return err
}

func (k *generation) hasMissed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.missed
}

// watch looks for new topics now and then, for MissingTopics.
func (k *generation) watch() {
	tick := time.NewTicker(k.s.g.WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = k.s.look(context.Background()) // It is looked again.
		case <-k.left:
			return
		}
	}
}

// idOf is a topic's id, as this generation first met it.
func (k *generation) idOf(topic string, now [16]byte) [16]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, ok := k.ids[topic]
	if !ok {
		id = now
		k.ids[topic] = id
	}
	return id
}

// Commit commits offsets as this member. While the group rebalances it may refuse them for a moment.
func (k *generation) Commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		err := k.commit(ctx, offsets)
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

func (k *generation) commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	if err := k.hasMissed(); err != nil {
		return err
	}
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = k.s.g.GroupID
	req.MemberID, req.Generation = k.s.client.GroupMetadata()
	if k.s.g.InstanceID != "" {
		req.InstanceID = &k.s.g.InstanceID
	}
	at := map[string]int{}
	for tp, offset := range offsets {
		n, ok := at[tp.Topic]
		if !ok {
			info, err := k.s.topic(ctx, place{tp.Topic, tp.Partition})
			if err != nil {
				return k.meets(err)
			}
			n = len(req.Topics)
			at[tp.Topic] = n
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = tp.Topic, k.idOf(tp.Topic, info.id)
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset = int32(tp.Partition), offset
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
	}
	resp, err := req.RequestWith(ctx, k.s.client)
	if err != nil {
		return fmt.Errorf("commit offsets: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("commit the offset of %s/%d: %w", t.Topic, p.Partition, k.meets(err))
			}
		}
	}
	return nil
}
