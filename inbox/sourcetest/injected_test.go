package sourcetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// reported runs a check and returns what it reported.
func reported(t *testing.T, name string, o Options) []string {
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	return ending.Reports(t, func(t testing.TB) { checks[i].check(t, o) })
}

// bug is what a source does wrong: each function that is set stands before the right one.
type bug struct {
	next     func(ctx context.Context, s source.Session) (source.Generation, error)
	close    func(s source.Session)
	assigned func(all map[source.TopicPartition]source.Start) map[source.TopicPartition]source.Start
	over     func(over <-chan struct{}) <-chan struct{}
	bounds   func(first, end int64) (int64, int64)
	fetch    func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error)
	page     func(p *source.Page)
	commit   func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) error
	leave    func(g source.Generation)
	extent   func(x source.Extent) source.Extent
}

type buggySource struct {
	inbox.Source
	bug bug
}

func (s buggySource) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	session, err := s.Source.Open(ctx, handover)
	return &buggySession{session, s.bug}, err
}

type buggySession struct {
	source.Session
	bug bug
}

func (s *buggySession) Next(ctx context.Context) (source.Generation, error) {
	next := s.Session.Next
	if s.bug.next != nil {
		next = func(ctx context.Context) (source.Generation, error) { return s.bug.next(ctx, s.Session) }
	}
	g, err := next(ctx)
	if err != nil {
		return nil, err
	}
	return &buggyGeneration{g, s.bug}, nil
}

func (s *buggySession) Close() {
	if s.bug.close != nil {
		s.bug.close(s.Session)
		return
	}
	s.Session.Close()
}

func (s *buggySession) Extents(ctx context.Context, at time.Time) (map[source.TopicPartition]source.Extent, error) {
	all, err := s.Session.(source.Bounded).Extents(ctx, at)
	for tp, x := range all {
		if s.bug.extent != nil {
			all[tp] = s.bug.extent(x)
		}
	}
	return all, err
}

type buggyGeneration struct {
	source.Generation
	bug bug
}

func (g *buggyGeneration) Assigned() map[source.TopicPartition]source.Start {
	if g.bug.assigned != nil {
		return g.bug.assigned(maps.Clone(g.Generation.Assigned()))
	}
	return g.Generation.Assigned()
}

func (g *buggyGeneration) Over() <-chan struct{} {
	if g.bug.over != nil {
		return g.bug.over(g.Generation.Over())
	}
	return g.Generation.Over()
}

func (g *buggyGeneration) Bounds(ctx context.Context, tp source.TopicPartition) (int64, int64, error) {
	first, end, err := g.Generation.Bounds(ctx, tp)
	if g.bug.bounds != nil {
		first, end = g.bug.bounds(first, end)
	}
	return first, end, err
}

func (g *buggyGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if g.bug.fetch != nil {
		return g.bug.fetch(ctx, g.Generation, tp, offset)
	}
	page, err := g.Generation.Fetch(ctx, tp, offset, maxBytes)
	if g.bug.page != nil {
		g.bug.page(&page)
	}
	return page, err
}

func (g *buggyGeneration) Commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	if g.bug.commit != nil {
		return g.bug.commit(ctx, g.Generation, offsets)
	}
	return g.Generation.Commit(ctx, offsets)
}

func (g *buggyGeneration) Leave() {
	if g.bug.leave != nil {
		g.bug.leave(g.Generation)
		return
	}
	g.Generation.Leave()
}

// eachRecord changes every record of a page.
func eachRecord(change func(r *source.Record)) bug {
	return bug{page: func(p *source.Page) {
		for i := range p.Records {
			change(&p.Records[i])
		}
	}}
}

func TestInjected_EveryInjectedBugIsReported(t *testing.T) {
	never := make(chan struct{})
	closed := make(chan struct{})
	close(closed)
	var given sync.Map // partitions that a member has, by topic
	for _, row := range []struct {
		name  string
		bug   bug
		check string // that reports it
	}{
		{"no offset is said to be the first", bug{assigned: func(all map[source.TopicPartition]source.Start) map[source.TopicPartition]source.Start {
			for tp, start := range all {
				start.Committed = max(start.Committed, 0)
				all[tp] = start
			}
			return all
		}}, "a new group has all partitions and no offsets"},
		{"only the first topic is consumed", bug{assigned: func(all map[source.TopicPartition]source.Start) map[source.TopicPartition]source.Start {
			maps.DeleteFunc(all, func(tp source.TopicPartition, _ source.Start) bool { return tp.Partition > 0 })
			return all
		}}, "a new group has all partitions and no offsets"},
		{"a generation is over at once", bug{over: func(<-chan struct{}) <-chan struct{} { return closed }}, "a new group has all partitions and no offsets"},
		{"a tombstone becomes an empty value", eachRecord(func(r *source.Record) {
			if r.Value == nil {
				r.Value = []byte{}
			}
		}), "records come as they were written"},
		{"an empty value becomes a tombstone", eachRecord(func(r *source.Record) {
			if len(r.Value) == 0 {
				r.Value = nil
			}
		}), "records come as they were written"},
		{"no key becomes an empty one", eachRecord(func(r *source.Record) {
			if r.Key == nil {
				r.Key = []byte{}
			}
		}), "records come as they were written"},
		{"of headers with one name the last is kept", eachRecord(func(r *source.Record) {
			r.Headers = slices.CompactFunc(slices.Clone(r.Headers), func(a, b source.Header) bool { return a.Key == b.Key })
		}), "records come as they were written"},
		{"offsets count from one", eachRecord(func(r *source.Record) { r.Offset++ }), "records come as they were written"},
		{"tombstones are left out", bug{page: func(p *source.Page) {
			p.Records = slices.DeleteFunc(p.Records, func(r source.Record) bool { return r.Value == nil })
		}}, "records come as they were written"},
		{"a fetch begins with the whole batch", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			return g.Fetch(ctx, tp, max(offset-offset%10, 0), pageBytes)
		}}, "reading starts at any offset"},
		{"a record is passed over", bug{page: func(p *source.Page) {
			if len(p.Records) > 2 {
				p.Records = slices.Delete(slices.Clone(p.Records), 1, 2)
			}
		}}, "reading starts at any offset"},
		{"the next offset is that of the last record", bug{page: func(p *source.Page) {
			if len(p.Records) > 0 {
				p.Next--
			}
		}}, "records come as they were written"},
		{"the end is the last record's offset", bug{bounds: func(first, end int64) (int64, int64) { return first, end - 1 }}, "the bounds are those of the log"},
		{"the first offset is always zero", bug{bounds: func(_, end int64) (int64, int64) { return 0, end }}, "a deleted offset is an error"},
		{"what other partitions have is never passed", bug{bounds: func(first, end int64) (int64, int64) { return first, end + 1 }}, "a partition at its end reaches the end of the log"},
		{"a record is jumped over on the way to the end", bug{page: func(p *source.Page) {
			if len(p.Records) > 1 {
				p.Records = p.Records[1:]
			}
		}}, "a partition at its end reaches the end of the log"},
		{"a page has all that there is", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			return g.Fetch(ctx, tp, offset, pageBytes)
		}}, "a page keeps to its bytes"},
		{"a large record is left out for good", eachRecord(func(r *source.Record) {
			if len(r.Value) > 100_000 {
				r.Value, r.LeftOut = nil, int64(len(r.Value))
			}
		}), "a record that is too large comes without its value"},
		{"at the end the next offset goes on", bug{page: func(p *source.Page) {
			if len(p.Records) == 0 {
				p.Next++
			}
		}}, "at the end a fetch waits a moment"},
		{"at the end a fetch waits for ever", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			if _, end, _ := g.Bounds(ctx, tp); offset >= end {
				<-ctx.Done()
				return source.Page{}, ctx.Err()
			}
			return g.Fetch(ctx, tp, offset, pageBytes)
		}}, "at the end a fetch waits a moment"},
		{"a fetch does not end with its context", bug{fetch: func(_ context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			<-t.Context().Done()
			return source.Page{}, t.Context().Err()
		}}, "a fetch ends with its context"},
		{"an offset after the end waits", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			if _, end, _ := g.Bounds(ctx, tp); offset > end {
				return source.Page{Next: offset}, nil
			}
			return g.Fetch(ctx, tp, offset, pageBytes)
		}}, "an offset after the end is an error"},
		{"an offset after the end is another error", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			page, err := g.Fetch(ctx, tp, offset, pageBytes)
			if err != nil {
				err = errors.New("out of range")
			}
			return page, err
		}}, "an offset after the end is an error"},
		{"deleted records are jumped over", bug{fetch: func(ctx context.Context, g source.Generation, tp source.TopicPartition, offset int64) (source.Page, error) {
			first, _, _ := g.Bounds(ctx, tp)
			return g.Fetch(ctx, tp, max(first, offset), pageBytes)
		}}, "a deleted offset is an error"},
		{"commits are lost", bug{commit: func(context.Context, source.Generation, map[source.TopicPartition]int64) error { return nil }}, "committed offsets outlive a restart"},
		{"a commit is of the record before", bug{commit: func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) error {
			offsets = maps.Clone(offsets)
			for tp := range offsets {
				offsets[tp]--
			}
			return g.Commit(ctx, offsets)
		}}, "committed offsets outlive a restart"},
		{"the first commit stays", bug{commit: func() func(context.Context, source.Generation, map[source.TopicPartition]int64) error {
			var once sync.Map
			return func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) (err error) {
				for tp, offset := range offsets {
					if _, again := once.LoadOrStore(tp, true); !again {
						err = errors.Join(err, g.Commit(ctx, map[source.TopicPartition]int64{tp: offset}))
					}
				}
				return err
			}
		}()}, "committed offsets outlive a restart"},
		{"one commit is for all partitions", bug{commit: func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) error {
			all := map[source.TopicPartition]int64{}
			for tp := range g.Assigned() {
				for _, offset := range offsets {
					all[tp] = offset
				}
			}
			return g.Commit(ctx, all)
		}}, "committed offsets outlive a restart"},
		{"closing a session does not leave the group", bug{close: func(source.Session) {}}, "committed offsets outlive a restart"},
		{"closing a session hangs", bug{close: func(source.Session) { <-t.Context().Done() }}, "committed offsets outlive a restart"},
		{"a generation that was left gives no other", bug{next: func(ctx context.Context, s source.Session) (source.Generation, error) {
			if _, again := given.LoadOrStore(s, true); again {
				<-t.Context().Done()
			}
			return s.Next(ctx)
		}}, "a generation that was left is followed by another"},
		{"Leave does nothing", bug{leave: func(source.Generation) {}}, "partitions are handed over after Leave"},
		{"Leave waits for the others", bug{leave: func(source.Generation) { <-t.Context().Done() }}, "a generation that was left is followed by another"},
		{"everybody has everything", bug{assigned: func(all map[source.TopicPartition]source.Start) map[source.TopicPartition]source.Start {
			for tp := range maps.Clone(all) {
				for p := range 4 {
					all[source.TopicPartition{Topic: tp.Topic, Partition: p}] = source.Start{Committed: source.NoOffset}
				}
			}
			return all
		}}, "members share the partitions"},
		{"the second member has nothing, and nobody the rest", bug{assigned: func(all map[source.TopicPartition]source.Start) map[source.TopicPartition]source.Start {
			maps.DeleteFunc(all, func(tp source.TopicPartition, _ source.Start) bool { return tp.Partition == 3 })
			return all
		}}, "members share the partitions"},
		{"nobody hears that another has joined", bug{over: func(<-chan struct{}) <-chan struct{} { return never }}, "members share the partitions"},
		{"partitions are given before they are let go of", bug{next: func(ctx context.Context, s source.Session) (source.Generation, error) {
			m := s.(*memorySession)
			m.m.mu.Lock()
			for _, other := range m.group.members {
				if other.gen != nil {
					other.gen.end()
					other.gen, other.joins = nil, true // as if it had joined anew
				}
			}
			m.m.mu.Unlock()
			return s.Next(ctx)
		}}, "partitions are handed over after Leave"},
		{"what is committed after Over is dropped", bug{commit: func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) error {
			select {
			case <-g.Over():
				return nil
			default:
				return g.Commit(ctx, offsets)
			}
		}}, "what is committed at a handover counts"},
		{"what is committed after Over is refused", bug{commit: func(ctx context.Context, g source.Generation, offsets map[source.TopicPartition]int64) error {
			select {
			case <-g.Over():
				return errors.New("rebalance in progress")
			default:
				return g.Commit(ctx, offsets)
			}
		}}, "what is committed at a handover counts"},
		{"a member that closed is waited for", bug{close: func(s source.Session) {
			m := s.(*memorySession)
			m.m.mu.Lock()
			m.gen = nil
			m.m.mu.Unlock()
		}}, "the rest takes over from one that closed"},
		{"joining does not end with its context", bug{next: func(ctx context.Context, s source.Session) (source.Generation, error) {
			<-t.Context().Done()
			return nil, ctx.Err()
		}}, "joining ends with its context"},
		{"an extent ends with its last record", bug{extent: func(x source.Extent) source.Extent { return source.Extent{First: x.First, End: x.End - 1, At: x.At} }},
			"a bounded session says where its topics end"},
		{"no record is found by its time", bug{extent: func(x source.Extent) source.Extent { return source.Extent{First: x.First, End: x.End, At: x.End} }},
			"the extent of a partition is found by time"},
		{"an extent begins at 0 for ever", bug{extent: func(x source.Extent) source.Extent { return source.Extent{End: x.End, At: x.At} }},
			"the extent begins after deleted records"},
		{"partitions share the place where they are read", bug{fetch: func() func(context.Context, source.Generation, source.TopicPartition, int64) (source.Page, error) {
			var mu sync.Mutex
			at := map[source.Generation]int64{}
			return func(ctx context.Context, g source.Generation, tp source.TopicPartition, _ int64) (source.Page, error) {
				mu.Lock()
				offset := at[g]
				mu.Unlock()
				page, err := g.Fetch(ctx, tp, offset, pageBytes)
				mu.Lock()
				at[g] = page.Next
				mu.Unlock()
				return page, err
			}
		}()}, "reading starts at any offset"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := inMemory()
			o.StepTimeout = 500 * time.Millisecond
			right := o.Source
			o.Source = func(t testing.TB, group string, topics ...string) inbox.Source {
				return buggySource{right(t, group, topics...), row.bug}
			}
			if reported(t, row.check, o) == nil {
				t.Errorf("the check %q does not report it", row.check)
			}
		})
	}
}

// Every check reports some injected bug: one that reports none would show nothing.
func TestInjected_NoCheckIsThereForNothing(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	o := inMemory()
	o.StepTimeout = 200 * time.Millisecond
	right := o.Source
	dead := bug{
		next: func(ctx context.Context, s source.Session) (source.Generation, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		close:  func(source.Session) {},
		extent: func(source.Extent) source.Extent { return source.Extent{First: -1} },
	}
	o.Source = func(t testing.TB, group string, topics ...string) inbox.Source {
		return buggySource{right(t, group, topics...), dead}
	}
	for _, c := range checks {
		if c.name == "joining ends with its context" {
			continue // which a source that gives nothing may do
		}
		if reported(t, c.name, o) == nil {
			t.Errorf("the check %q passes with a source that never gives a partition", c.name)
		}
	}
}
