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

	"github.com/holdfast-go/holdfast/relay/publish"
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

	// expired is set by a failure: it is time to ask again. doubted, of each partition, is set by a failure of that one.
	expired atomic.Bool
	doubted []atomic.Bool

	// limit is the longest batch that is worth trying, learned from refusals; 0 when nothing was refused yet.
	limit atomic.Int64
}

// doubts says that a partition has failed since the answer.
func (i *topicInfo) doubts(partition int) bool {
	return partition >= 0 && partition < len(i.doubted) && i.doubted[partition].Load()
}

// topics keeps what the cluster says of topics. Safe for use by many goroutines.
//
// What is old is asked for beside the calls, and serves until there is an answer: a broker that hangs may be the one that is asked, and
// the partitions of all others go on. Only who knows nothing of a topic waits, and who has met a failure of his partition.
type topics struct {
	ask     func(ctx context.Context, names []string) (map[string]described, error)
	ttl     time.Duration
	timeout time.Duration

	mu     sync.RWMutex
	known  map[string]*topicInfo
	asking map[string]*question // by topic, those under way
}

// question is one about some topics.
type question struct {
	answered chan struct{}
	failed   map[string]*publish.Error // why topics cannot be written to. Read it when answered is closed.
}

// topicsOf are those of a client's cluster.
func topicsOf(client *kgo.Client, ttl, timeout time.Duration) topics {
	ask := func(ctx context.Context, names []string) (map[string]described, error) {
		return describe(ctx, client, names)
	}
	return topics{
		ask:     ask,
		ttl:     ttl,
		timeout: timeout,
		known:   map[string]*topicInfo{},
		asking:  map[string]*question{},
	}
}

// get returns what is known of a topic without asking; nil when nothing is.
func (t *topics) get(topic string) *topicInfo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.known[topic]
}

// expire makes the next call for the topic ask again, and those for the partition wait for the answer.
func (t *topics) expire(at place) {
	info := t.get(at.topic)
	if info == nil {
		return
	}
	info.expired.Store(true)
	if at.partition >= 0 && at.partition < len(info.doubted) {
		info.doubted[at.partition].Store(true)
	}
}

func (t *topics) stale(info *topicInfo) bool {
	return info == nil || info.expired.Load() || time.Since(info.readAt) >= t.ttl
}

// topicAnswer is the answer for one topic of a call: what is known, or why nothing can be sent to it.
type topicAnswer struct {
	info *topicInfo
	err  *publish.Error
}

// lookup answers for some topics. It waits for those of which nothing is known.
func (t *topics) lookup(ctx context.Context, names []string) map[string]topicAnswer {
	answers := make(map[string]topicAnswer, len(names))
	var questions map[string]*question
	if slices.ContainsFunc(names, func(name string) bool { return t.stale(t.get(name)) }) {
		questions = t.inquire(names)
	}
	for _, name := range names {
		info := t.get(name)
		if q := questions[name]; info == nil && q != nil {
			answers[name] = t.await(ctx, q, name)
			continue
		}
		answers[name] = answerFor(name, info)
	}
	return answers
}

// at answers for the topic of a partition. It waits if nothing is known of the topic, or the partition has failed since.
func (t *topics) at(ctx context.Context, at place) topicAnswer {
	a := t.lookup(ctx, []string{at.topic})[at.topic]
	if a.info == nil || !a.info.doubts(at.partition) {
		return a
	}
	if q := t.inquire([]string{at.topic})[at.topic]; q != nil {
		return t.await(ctx, q, at.topic)
	}
	return answerFor(at.topic, t.get(at.topic))
}

// await answers for a topic when a question about it is answered. If that failed the old answer is used where there is one, since
// partitions hardly ever change.
func (t *topics) await(ctx context.Context, q *question, name string) topicAnswer {
	select {
	case <-q.answered:
	case <-ctx.Done():
		if info := t.get(name); info != nil {
			return topicAnswer{info: info}
		}
		return topicAnswer{err: notSent(place{name, nowhere}, ctx.Err())}
	}
	info := t.get(name)
	if err := q.failed[name]; info == nil && err != nil {
		return topicAnswer{err: err}
	}
	return answerFor(name, info)
}

// answerFor is what is known of a topic. It is missing if nothing is: somebody has just found that.
func answerFor(name string, info *topicInfo) topicAnswer {
	if info == nil {
		return topicAnswer{err: missing(name, kerr.UnknownTopicOrPartition)}
	}
	return topicAnswer{info: info}
}

// inquire returns the questions about those of some topics that are stale. It begins one where none is under way.
func (t *topics) inquire(names []string) map[string]*question {
	t.mu.Lock()
	defer t.mu.Unlock()
	questions := make(map[string]*question, len(names))
	begun := &question{answered: make(chan struct{}), failed: map[string]*publish.Error{}}
	var about []string
	for _, name := range names {
		if !t.stale(t.known[name]) {
			continue
		}
		if t.asking[name] == nil {
			t.asking[name] = begun
			about = append(about, name)
		}
		questions[name] = t.asking[name]
	}
	if len(about) > 0 {
		go t.answer(begun, about)
	}
	return questions
}

// answer asks the cluster, and answers a question.
func (t *topics) answer(q *question, about []string) {
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	found, err := t.ask(ctx, about)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range about {
		delete(t.asking, name)
		if err != nil {
			q.failed[name] = notSent(place{name, nowhere}, err)
			continue
		}
		d, ok := found[name]
		if !ok || d.err == nil && len(d.leaders) == 0 {
			d.err = kerr.UnknownTopicOrPartition
		}
		if d.err != nil {
			delete(t.known, name)
			q.failed[name] = missing(name, d.err)
			continue
		}
		t.known[name] = &topicInfo{
			id:      d.id,
			leaders: d.leaders,
			readAt:  time.Now(),
			doubted: make([]atomic.Bool, len(d.leaders)),
		}
	}
	close(q.answered)
}

// missing is the error for a topic that the cluster answers err for. Whatever the code, it concerns the topic and no partition of it,
// unless it is our way in that is shut.
func missing(topic string, err error) *publish.Error {
	e := notSent(place{topic, nowhere}, fmt.Errorf("%w: create the topic, or grant Describe and Write on it", err))
	if e.Fault != publish.FaultBroker {
		e.Fault = publish.FaultTopic
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
		d := described{
			id:      topic.TopicID,
			err:     kerr.ErrorForCode(topic.ErrorCode),
			leaders: make([]int32, len(topic.Partitions)),
		}
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
