package franz

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/relay"
)

// nowhere is in place of a partition or a leader that is not known.
const nowhere = -1

// place is a partition of a topic.
type place struct {
	topic     string
	partition int
}

// topicInfo is what we know of a topic.
type topicInfo struct {
	id      [16]byte
	leaders []int32 // of each partition, nowhere if it has none. Invariant: at least 1.
	readAt  time.Time

	// expired is set by a failure: the next call asks again, and until then it is good enough for Partition.
	expired atomic.Bool

	// limit is the longest batch that is worth trying, learned from refusals; 0 when nothing was refused yet.
	limit atomic.Int64
}

// topics keeps what the cluster says of topics. Safe for use by many goroutines.
type topics struct {
	client  *kgo.Client
	ttl     time.Duration
	timeout time.Duration

	asking sync.Mutex // one question at a time
	mu     sync.RWMutex
	known  map[string]*topicInfo
}

// get returns what is known of a topic without asking; nil when nothing is.
func (t *topics) get(topic string) *topicInfo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.known[topic]
}

// expire makes the next call ask for the topic again.
func (t *topics) expire(topic string) {
	if info := t.get(topic); info != nil {
		info.expired.Store(true)
	}
}

func (t *topics) stale(topic string) bool {
	info := t.get(topic)
	return info == nil || info.expired.Load() || time.Since(info.readAt) >= t.ttl
}

// topicAnswer is the answer for one topic of a call: what is known, or why nothing can be sent to it.
type topicAnswer struct {
	info *topicInfo
	err  *relay.PublishError
}

// lookup answers for some topics. It asks once for those that it does not know or no longer believes. When that fails, the old answer
// is used where there is one, since partitions hardly ever change, and the others cannot be written to for now.
func (t *topics) lookup(ctx context.Context, names []string) map[string]topicAnswer {
	answers := make(map[string]topicAnswer, len(names))
	var failed map[string]*relay.PublishError
	if slices.ContainsFunc(names, t.stale) {
		failed = t.refresh(ctx, names)
	}
	for _, name := range names {
		switch info := t.get(name); {
		case info != nil:
			answers[name] = topicAnswer{info: info}
		case failed[name] != nil:
			answers[name] = topicAnswer{err: failed[name]}
		default: // somebody else has found it missing since
			answers[name] = topicAnswer{err: missing(name, kerr.UnknownTopicOrPartition)}
		}
	}
	return answers
}

// refresh asks for those of some topics that are stale, and says which cannot be written to.
func (t *topics) refresh(ctx context.Context, names []string) map[string]*relay.PublishError {
	t.asking.Lock()
	defer t.asking.Unlock()
	failed := map[string]*relay.PublishError{}
	var ask []string
	for _, name := range names {
		if t.stale(name) {
			ask = append(ask, name)
		}
	}
	if len(ask) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	found, err := describe(ctx, t.client, ask)
	if err != nil {
		for _, name := range ask {
			failed[name] = notSent(place{name, nowhere}, err)
		}
		return failed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[string]*topicInfo{}
	}
	for _, name := range ask {
		d, ok := found[name]
		if err = d.err; !ok || err == nil && len(d.leaders) == 0 {
			err = kerr.UnknownTopicOrPartition
		}
		if err != nil {
			delete(t.known, name)
			failed[name] = missing(name, err)
			continue
		}
		t.known[name] = &topicInfo{id: d.id, leaders: d.leaders, readAt: time.Now()}
	}
	return failed
}

// missing is the error for a topic that the cluster answers err for. Whatever the code, it concerns the topic and no partition of it,
// unless it is our way in that is shut.
func missing(topic string, err error) *relay.PublishError {
	e := notSent(place{topic, nowhere}, fmt.Errorf("%w: create the topic, or grant Describe and Write on it", err))
	if e.Fault != relay.FaultBroker {
		e.Fault = relay.FaultTopic
	}
	return e
}

// described is what the cluster says of a topic.
type described struct {
	id      [16]byte
	leaders []int32
	err     error
}

// describe asks a cluster, or one of its brokers, for topics. It makes none.
func describe(ctx context.Context, client kmsg.Requestor, names []string) (map[string]described, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range names {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	found := map[string]described{}
	for _, topic := range resp.Topics {
		if topic.Topic == nil {
			continue
		}
		d := described{id: topic.TopicID, err: kerr.ErrorForCode(topic.ErrorCode), leaders: make([]int32, len(topic.Partitions))}
		for i := range d.leaders {
			d.leaders[i] = nowhere
		}
		for _, p := range topic.Partitions {
			if p.Partition >= 0 && int(p.Partition) < len(d.leaders) {
				d.leaders[p.Partition] = p.Leader
			}
		}
		found[*topic.Topic] = d
	}
	return found, nil
}

// others finds, for some brokers that lead anything but do not lead at, a partition that each leads.
func (t *topics) others(silent int32, most int) map[int32]place {
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := map[int32]place{}
	for name, info := range t.known {
		for p, leader := range info.leaders {
			if leader != silent && leader >= 0 {
				found[leader] = place{name, p}
			}
		}
	}
	for _, broker := range slices.Sorted(maps.Keys(found)) {
		if len(found) > most {
			delete(found, broker)
		}
	}
	return found
}
