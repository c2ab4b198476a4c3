package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// Memory is a broker in memory with consumer groups. It is for tests that need no other broker, and an example of an
// inbox.Source. Many goroutines may use it at once.
type Memory struct {
	mu     sync.Mutex
	topics map[string][]*memoryLog // by partition
	groups map[string]*memoryGroup
}

// memoryLog is a partition. Its first record has the offset in first.
type memoryLog struct {
	first   int64
	records []source.Record
	grown   chan struct{} // closed when there are more records
}

func (l *memoryLog) end() int64 { return l.first + int64(len(l.records)) }

type memoryGroup struct {
	committed map[source.TopicPartition]int64
	members   []*memorySession // in the order in which they joined
}

// CreateTopic makes an empty topic.
func (m *Memory) CreateTopic(name string, partitions int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics == nil {
		m.topics, m.groups = map[string][]*memoryLog{}, map[string]*memoryGroup{}
	}
	for range partitions {
		m.topics[name] = append(m.topics[name], &memoryLog{grown: make(chan struct{})})
	}
}

// Produce appends records to a partition. It sets their offsets.
func (m *Memory) Produce(topic string, partition int, records ...source.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := m.topics[topic][partition]
	for _, r := range records {
		r.Offset = log.end()
		if r.Time.IsZero() {
			r.Time = time.Now()
		}
		log.records = append(log.records, r)
	}
	close(log.grown)
	log.grown = make(chan struct{})
}

// Delete deletes the records of a partition before an offset, as retention does.
func (m *Memory) Delete(topic string, partition int, before int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := m.topics[topic][partition]
	log.records = slices.Clone(log.records[before-log.first:])
	log.first = before
}

// Source returns a source for inbox.Inbox: a group that consumes topics, which must exist.
func (m *Memory) Source(group string, topics ...string) inbox.Source {
	return &memorySource{m, group, topics}
}

type memorySource struct {
	m      *Memory
	group  string
	topics []string
}

func (s *memorySource) Open(context.Context, time.Duration) (source.Session, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, topic := range s.topics {
		if s.m.topics[topic] == nil {
			return nil, fmt.Errorf("topic is %q: it does not exist", topic)
		}
	}
	if s.m.groups[s.group] == nil {
		s.m.groups[s.group] = &memoryGroup{committed: map[source.TopicPartition]int64{}}
	}
	return &memorySession{
		m:      s.m,
		group:  s.m.groups[s.group],
		topics: s.topics,
		given:  make(chan *memoryGeneration, 1),
	}, nil
}

type memorySession struct {
	m      *Memory
	group  *memoryGroup
	topics []string
	given  chan *memoryGeneration
	gen    *memoryGeneration // nil after it was left
	joins  bool              // Next waits for a generation
}

func (s *memorySession) Next(ctx context.Context) (source.Generation, error) {
	s.m.mu.Lock()
	if s.gen != nil {
		s.m.mu.Unlock()
		return nil, errors.New("join the group: the generation before was not left")
	}
	if !slices.Contains(s.group.members, s) {
		s.group.members = append(s.group.members, s)
	}
	s.joins = true
	s.group.rebalance(s.m)
	s.m.mu.Unlock()
	select {
	case g := <-s.given:
		return g, nil
	case <-ctx.Done():
		s.Close()
		return nil, ctx.Err()
	}
}

var _ source.Bounded = (*memorySession)(nil)

func (s *memorySession) Extents(_ context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	all := map[source.TopicPartition]source.Extent{}
	for _, topic := range s.topics {
		for p, log := range s.m.topics[topic] {
			x := source.Extent{First: log.first, End: log.end(), At: log.end()}
			if i := slices.IndexFunc(log.records, func(r source.Record) bool { return !r.Time.Before(at) }); i >= 0 && !at.IsZero() {
				x.At = log.records[i].Offset
			}
			all[source.TopicPartition{Topic: topic, Partition: p}] = x
		}
	}
	return all, nil
}

func (s *memorySession) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.group.members = slices.DeleteFunc(s.group.members, func(other *memorySession) bool { return other == s })
	select {
	case <-s.given: // Nobody will take it.
	default:
	}
	s.gen, s.joins = nil, false
	s.group.rebalance(s.m)
}

// rebalance takes all partitions back. It assigns them when every member has left its generation and joined again.
func (g *memoryGroup) rebalance(m *Memory) {
	waiting := true
	for _, s := range g.members {
		if s.gen != nil {
			s.gen.end()
		}
		waiting = waiting && s.joins
	}
	if !waiting {
		return
	}
	for i, s := range g.members {
		s.gen = &memoryGeneration{
			s:        s,
			over:     make(chan struct{}),
			assigned: map[source.TopicPartition]source.Start{},
		}
		for _, topic := range s.topics {
			for p := range m.topics[topic] {
				if p%len(g.members) == i {
					s.gen.assigned[source.TopicPartition{Topic: topic, Partition: p}] = source.Start{Committed: g.offset(topic, p)}
				}
			}
		}
		s.joins = false
		s.given <- s.gen
	}
}

func (g *memoryGroup) offset(topic string, partition int) int64 {
	if offset, ok := g.committed[source.TopicPartition{Topic: topic, Partition: partition}]; ok {
		return offset
	}
	return source.NoOffset
}

type memoryGeneration struct {
	s        *memorySession
	assigned map[source.TopicPartition]source.Start
	over     chan struct{}
	ended    bool // over was closed
}

func (g *memoryGeneration) end() {
	if !g.ended {
		g.ended = true
		close(g.over)
	}
}

func (g *memoryGeneration) Assigned() map[source.TopicPartition]source.Start { return g.assigned }

func (g *memoryGeneration) Over() <-chan struct{} { return g.over }

func (g *memoryGeneration) Bounds(_ context.Context, tp source.TopicPartition) (first, end int64, err error) {
	g.s.m.mu.Lock()
	defer g.s.m.mu.Unlock()
	log := g.s.m.topics[tp.Topic][tp.Partition]
	return log.first, log.end(), nil
}

func (g *memoryGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	read := func() (source.Page, <-chan struct{}, error) {
		g.s.m.mu.Lock()
		defer g.s.m.mu.Unlock()
		log := g.s.m.topics[tp.Topic][tp.Partition]
		if offset < log.first || offset > log.end() {
			return source.Page{}, nil, fmt.Errorf("%w: the log holds %d to %d", source.ErrOffsetOutOfRange, log.first, log.end())
		}
		return pageOf(log.records[offset-log.first:], offset, maxBytes), log.grown, nil
	}
	page, grown, err := read()
	if err != nil || len(page.Records) > 0 {
		return page, err
	}
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-grown:
	case <-timer.C:
	case <-ctx.Done():
		return source.Page{}, ctx.Err()
	}
	page, _, err = read()
	return page, err
}

// pageOf is as many records as have maxBytes. One that alone has more comes without its value.
func pageOf(records []source.Record, offset, maxBytes int64) source.Page {
	page := source.Page{Next: offset}
	for _, r := range records {
		n := int64(len(r.Key) + len(r.Value))
		for _, h := range r.Headers {
			n += int64(len(h.Key) + len(h.Value))
		}
		alone := len(page.Records) == 0
		if n > maxBytes && alone {
			r.Value, r.LeftOut = nil, n
		} else if n > maxBytes {
			break
		}
		maxBytes -= n
		page.Records, page.Next = append(page.Records, r), r.Offset+1
		if r.LeftOut > 0 {
			break
		}
	}
	return page
}

func (g *memoryGeneration) Commit(_ context.Context, offsets map[source.TopicPartition]int64) error {
	g.s.m.mu.Lock()
	defer g.s.m.mu.Unlock()
	if g.s.gen != g {
		return errors.New("commit offsets: the generation was left")
	}
	for tp, offset := range offsets {
		g.s.group.committed[tp] = offset
	}
	return nil
}

func (g *memoryGeneration) Leave() {
	g.s.m.mu.Lock()
	defer g.s.m.mu.Unlock()
	if g.s.gen == g {
		g.end()
		g.s.gen = nil // The others wait until this member has joined again, or closed its session.
	}
}
