// Package sourcetest checks that an inbox.Source keeps its promises. Memory is a small one, as an example.
//
//	func TestSource(t *testing.T) {
//		sourcetest.Run(t, sourcetest.Options{Source: newSource, Topic: createTopic, Produce: produce})
//	}
package sourcetest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// Options are the Source under test and its broker.
type Options struct {
	// Source makes a source: a consumer group of this name, which consumes topics. Required.
	Source func(t testing.TB, group string, topics ...string) inbox.Source

	// Topic makes an empty topic and returns its name. Required.
	Topic func(t testing.TB, partitions int) string

	// Produce appends records to a partition, with offsets that the broker gives. Required.
	Produce func(t testing.TB, topic string, partition int, records ...source.Record)

	// Delete deletes the records of a partition before an offset, as retention does. Without it, that check is left out.
	Delete func(t testing.TB, topic string, partition int, before int64)

	// FirstOffset is the offset of a topic's first record. Defaults to 0, as in Kafka.
	FirstOffset int64

	// StepTimeout is how long one step may take, such as joining a group. Defaults to 1 min.
	StepTimeout time.Duration
}

// handover is the time that the sources get as an inbox's handover.
const handover = 100 * time.Millisecond

// Run checks everything, each promise in a subtest.
func Run(t *testing.T, o Options) {
	if o.Source == nil || o.Topic == nil || o.Produce == nil {
		t.Fatal("sourcetest: Source, Topic and Produce are required")
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if c.needs != nil && !c.needs(o) {
				t.Log("not checked: the option that it needs is not set")
				return
			}
			c.check(t, o)
		})
	}
}

// check runs one check, and closes what it left open.
func (c *check) check(t testing.TB, o Options) {
	if o.StepTimeout == 0 {
		o.StepTimeout = time.Minute
	}
	s := &suite{TB: t, o: o, group: "sourcetest-" + strings.ToLower(rand.Text())}
	defer s.closeAll()
	c.run(s)
}

type check struct {
	name  string
	run   func(s *suite)
	needs func(o Options) bool
}

// checks are the promises of inbox.Source.
var checks = []check{
	{"a new group has all partitions and no offsets", (*suite).newGroup, nil},
	{"records come as they were written", (*suite).recordsAsWritten, nil},
	{"reading starts at any offset", (*suite).anyOffset, nil},
	{"the bounds are those of the log", (*suite).bounds, nil},
	{"a partition at its end reaches the end of the log", (*suite).reachesTheEnd, nil},
	{"at the end a fetch waits a moment", (*suite).waitsAtTheEnd, nil},
	{"a page keeps to its bytes", (*suite).pageBytes, nil},
	{"a record that is too large comes without its value", (*suite).leftOut, nil},
	{"a fetch ends with its context", (*suite).fetchEnds, nil},
	{"an offset after the end is an error", (*suite).afterTheEnd, nil},
	{"a deleted offset is an error", (*suite).deleted, func(o Options) bool { return o.Delete != nil }},
	{"committed offsets outlive a restart", (*suite).commitAndRestart, nil},
	{"a generation that was left is followed by another", (*suite).leaveAndJoin, nil},
	{"members share the partitions", (*suite).membersShare, nil},
	{"partitions are handed over after Leave", (*suite).handOver, nil},
	{"what is committed at a handover counts", (*suite).commitAtHandover, nil},
	{"the rest takes over from one that closed", (*suite).takeOver, nil},
	{"joining ends with its context", (*suite).nextEnds, nil},
	{"partitions are read at the same time", (*suite).concurrent, nil},
	{"a bounded session says where its topics end", (*suite).extents, nil},
	{"the extent of a partition is found by time", (*suite).extentAtATime, nil},
	{"the extent begins after deleted records", (*suite).extentAfterDeletion, func(o Options) bool { return o.Delete != nil }},
}

// pageBytes is how many bytes a page may have where a check is about something else.
const pageBytes = 4 << 20

// suite is one check.
type suite struct {
	testing.TB
	o     Options
	group string
	open  []func()
}

func (s *suite) closeAll() {
	for i := len(s.open) - 1; i >= 0; i-- {
		s.open[i]()
	}
}

// member is a session with its generation.
type member struct {
	*suite
	session source.Session
	gen     source.Generation
	closed  bool
}

// join opens a session of the group.
func (s *suite) join(topics ...string) *member {
	s.Helper()
	session, err := s.o.Source(s, s.group, topics...).Open(s.Context(), handover)
	if err != nil {
		s.Fatalf("open the source: %v", err)
	}
	m := &member{suite: s, session: session}
	s.open = append(s.open, m.close)
	return m
}

// close leaves the group, within StepTimeout.
func (m *member) close() {
	if m.closed {
		return
	}
	m.closed = true
	m.within("leave the group", func() {
		if m.gen != nil {
			m.gen.Leave()
		}
		m.session.Close()
	})
}

// within fails if a step takes longer than StepTimeout.
func (s *suite) within(step string, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	timer := time.NewTimer(s.o.StepTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.Errorf("step %q takes more than %s", step, s.o.StepTimeout)
	}
}

// given is what a call of Next returned.
type given struct {
	gen source.Generation
	err error
}

// next calls Next in another goroutine, until it gives a generation. The caller waits with await.
func (m *member) next(ctx context.Context) <-chan given {
	result := make(chan given, 1)
	go func() {
		for {
			gen, err := m.session.Next(ctx)
			if err == nil || ctx.Err() != nil {
				result <- given{gen, err}
				return
			}
			select { // Wait after an error, as an inbox does: the broker may not be ready.
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return result
}

// await makes the generation that next got the member's own.
func (m *member) await(result <-chan given) {
	m.Helper()
	timer := time.NewTimer(m.o.StepTimeout)
	defer timer.Stop()
	select {
	case g := <-result:
		if g.err != nil {
			m.Fatalf("Next: %v", g.err)
		}
		m.gen = g.gen
	case <-timer.C:
		m.Fatalf("Next gives no generation within %s", m.o.StepTimeout)
	}
}

// begin joins, and waits for a generation.
func (s *suite) begin(topics ...string) *member {
	s.Helper()
	m := s.join(topics...)
	ctx, cancel := context.WithCancel(s.Context())
	s.open = append(s.open, cancel)
	m.await(m.next(ctx))
	return m
}

// leave releases the partitions.
func (m *member) leave() { m.within("release the partitions", m.gen.Leave) }

// over waits until the group wants the member's partitions back.
func (m *member) over() {
	m.Helper()
	timer := time.NewTimer(m.o.StepTimeout)
	defer timer.Stop()
	select {
	case <-m.gen.Over():
	case <-timer.C:
		m.Fatalf("Over is not closed within %s after another has joined or left", m.o.StepTimeout)
	}
}

// fetch returns the page at offset.
func (m *member) fetch(tp source.TopicPartition, offset int64) source.Page {
	m.Helper()
	page, err := m.tryFetch(tp, offset)
	if err != nil {
		m.Fatalf("fetch %s/%d at %d: %v", tp.Topic, tp.Partition, offset, err)
	}
	return page
}

func (m *member) tryFetch(tp source.TopicPartition, offset int64) (source.Page, error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), m.o.StepTimeout)
	defer cancel()
	return m.gen.Fetch(ctx, tp, offset, pageBytes)
}

// read fetches until it has n records from offset on.
func (m *member) read(tp source.TopicPartition, offset int64, n int) []source.Record {
	m.Helper()
	var all []source.Record
	for end := time.Now().Add(m.o.StepTimeout); len(all) < n; {
		page := m.fetch(tp, offset)
		for _, r := range page.Records {
			if r.Offset < offset || r.Offset >= page.Next {
				m.Fatalf("a page from %d to %d holds a record of offset %d", offset, page.Next, r.Offset)
			}
		}
		if page.Next < offset {
			m.Fatalf("the page at offset %d continues at %d", offset, page.Next)
		}
		all, offset = append(all, page.Records...), page.Next
		if time.Now().After(end) {
			m.Fatalf("%d of %d records come within %s", len(all), n, m.o.StepTimeout)
		}
	}
	return all
}

// commit commits one offset.
func (m *member) commit(tp source.TopicPartition, offset int64) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), m.o.StepTimeout)
	defer cancel()
	if err := m.gen.Commit(ctx, map[source.TopicPartition]int64{tp: offset}); err != nil {
		m.Fatalf("commit offset %d of %s/%d: %v", offset, tp.Topic, tp.Partition, err)
	}
}
