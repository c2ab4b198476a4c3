package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// record is a record with headers.
func record(key, value string) source.Record {
	return source.Record{
		Key:     []byte(key),
		Value:   []byte(value),
		Headers: []source.Header{{Key: "ce_id", Value: []byte(value)}, {Key: "ce_type", Value: []byte("order.placed")}},
	}
}

func numbered(n int) []source.Record {
	records := make([]source.Record, n)
	for i := range records {
		records[i] = record(fmt.Sprint("k", i%3), fmt.Sprint(i))
	}
	return records
}

func first(topic string) source.TopicPartition { return source.TopicPartition{Topic: topic} }

func (s *suite) newGroup() {
	one, two := s.o.Topic(s, 3), s.o.Topic(s, 1)
	m := s.begin(one, two)
	want := map[source.TopicPartition]source.Start{{Topic: two}: {Committed: source.NoOffset}}
	for p := range 3 {
		want[source.TopicPartition{Topic: one, Partition: p}] = source.Start{Committed: source.NoOffset}
	}
	for range 2 {
		if got := m.gen.Assigned(); !maps.Equal(got, want) {
			s.Errorf("the one member of a new group is assigned %v, want %v", got, want)
		}
	}
	select {
	case <-m.gen.Over():
		s.Error("the generation is over, and nobody else has joined")
	default:
	}
}

func (s *suite) recordsAsWritten() {
	topic := s.o.Topic(s, 1)
	want := []source.Record{
		record("k", "1"),
		{Value: []byte("without a key")},
		{Key: []byte("tombstone")},
		{Key: []byte("empty"), Value: []byte{}},
		{Key: []byte{0, 0xff}, Value: []byte{0xff, 0}, Headers: []source.Header{{Key: "twice", Value: []byte("a")}, {Key: "twice", Value: []byte("b")}, {Key: "empty", Value: []byte{}}}},
	}
	s.o.Produce(s, topic, 0, want...)
	got := s.begin(topic).read(first(topic), s.o.FirstOffset, len(want))
	if len(got) != len(want) {
		s.Fatalf("%d records were written and %d come", len(want), len(got))
	}
	same := func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) }
	for i, w := range want {
		g := got[i]
		headers := slices.EqualFunc(byName(g.Headers), byName(w.Headers), func(a, b source.Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) })
		if g.Offset != s.o.FirstOffset+int64(i) || !same(g.Key, w.Key) || !same(g.Value, w.Value) || !headers {
			s.Errorf("record %d was written as %+v and comes as %+v", i, w, g)
		}
	}
}

// byName sorts headers by name. Those of one name keep their order; a broker may keep no other.
func byName(headers []source.Header) []source.Header {
	return slices.SortedStableFunc(slices.Values(headers), func(a, b source.Header) int { return strings.Compare(a.Key, b.Key) })
}

func (s *suite) anyOffset() {
	topic := s.o.Topic(s, 1)
	s.o.Produce(s, topic, 0, numbered(30)...)
	m := s.begin(topic)
	for _, n := range []int64{7, 0, 29, 15} {
		got := m.read(first(topic), s.o.FirstOffset+n, 30-int(n))
		for i, r := range got {
			if want := n + int64(i); r.Offset != s.o.FirstOffset+want || string(r.Value) != fmt.Sprint(want) {
				s.Fatalf("from offset %d, record %d has offset %d and value %s", s.o.FirstOffset+n, i, r.Offset, r.Value)
			}
		}
	}
}

func (s *suite) bounds() {
	topic := s.o.Topic(s, 1)
	m := s.begin(topic)
	for _, want := range []int64{0, 5} {
		from, end, err := m.gen.Bounds(s.Context(), first(topic))
		if from != s.o.FirstOffset || end != s.o.FirstOffset+want || err != nil {
			s.Errorf("the bounds of a log with %d records are %d and %d, %v", want, from, end, err)
		}
		s.o.Produce(s, topic, 0, numbered(5)...)
	}
}

func (s *suite) waitsAtTheEnd() {
	topic := s.o.Topic(s, 1)
	s.o.Produce(s, topic, 0, numbered(3)...)
	m := s.begin(topic)
	m.read(first(topic), s.o.FirstOffset, 3)
	end := s.o.FirstOffset + 3
	if page := m.fetch(first(topic), end); len(page.Records) > 0 || page.Next != end {
		s.Errorf("at the end of the log the page holds %d records, and offset %d is next, want %d", len(page.Records), page.Next, end)
	}
	s.o.Produce(s, topic, 0, record("k", "3"))
	if got := m.read(first(topic), end, 1); string(got[0].Value) != "3" || got[0].Offset != end {
		s.Errorf("a record that was written after the reader had met the end comes as %+v", got[0])
	}
}

// reachesTheEnd is about logs whose partitions share their offsets: an offset that waited for its partition's next record would be deleted
// before that comes.
func (s *suite) reachesTheEnd() {
	topic := s.o.Topic(s, 2)
	other := source.TopicPartition{Topic: topic, Partition: 1}
	for i := range 3 {
		s.o.Produce(s, topic, 0, record("k", fmt.Sprint(i)))
		s.o.Produce(s, topic, 1, record("k", fmt.Sprint("beside ", i)), record("k", "another"))
	}
	m := s.begin(topic)
	offset := s.o.FirstOffset
	var got []string
	for end := time.Now().Add(s.o.StepTimeout); ; {
		page := m.fetch(first(topic), offset)
		for _, r := range page.Records {
			got = append(got, string(r.Value))
		}
		offset = page.Next
		_, last, err := m.gen.Bounds(s.Context(), first(topic))
		if err != nil {
			s.Fatalf("bounds: %v", err)
		}
		if offset == last {
			break
		}
		if time.Now().After(end) {
			s.Fatalf("after %q the next offset is %d, and the end of the log %d, for %s", got, offset, last, s.o.StepTimeout)
		}
	}
	if want := []string{"0", "1", "2"}; !slices.Equal(got, want) {
		s.Errorf("the partition gives %q, want %q", got, want)
	}
	if got := m.read(other, s.o.FirstOffset, 6); string(got[0].Value) != "beside 0" || string(got[5].Value) != "another" {
		s.Errorf("the other partition gives %d records, the first %s, the last %s", len(got), got[0].Value, got[5].Value)
	}
	s.o.Produce(s, topic, 0, record("k", "3"))
	if got := m.read(first(topic), offset, 1); string(got[0].Value) != "3" {
		s.Errorf("what came after the end is %s, want 3", got[0].Value)
	}
}

func (s *suite) pageBytes() {
	const records, size, most = 40, 10_000, 100_000
	topic := s.o.Topic(s, 1)
	all := numbered(records)
	for i := range all {
		all[i].Value = bytes.Repeat([]byte{'x'}, size)
	}
	s.o.Produce(s, topic, 0, all...)
	m := s.begin(topic)
	ctx, cancel := context.WithTimeout(s.Context(), s.o.StepTimeout)
	defer cancel()
	for offset, want := s.o.FirstOffset, s.o.FirstOffset; offset < s.o.FirstOffset+records; {
		page, err := m.gen.Fetch(ctx, first(topic), offset, most)
		if err != nil {
			s.Fatalf("fetch at %d: %v", offset, err)
		}
		if n := len(page.Records) * size; n > most {
			s.Fatalf("a page of at most %d bytes has %d", most, n)
		}
		for _, r := range page.Records {
			if r.Offset != want || len(r.Value) != size || r.LeftOut != 0 {
				s.Fatalf("record %d has offset %d and a value of %d bytes, with %d left out", want, r.Offset, len(r.Value), r.LeftOut)
			}
			want++
		}
		offset = page.Next
	}
}

func (s *suite) leftOut() {
	topic := s.o.Topic(s, 1)
	all := numbered(5)
	all[2].Value = bytes.Repeat([]byte{'x'}, 300_000)
	s.o.Produce(s, topic, 0, all...)
	m := s.begin(topic)
	ctx, cancel := context.WithTimeout(s.Context(), s.o.StepTimeout)
	defer cancel()
	most, whole := int64(20_000), false
	for offset, want := s.o.FirstOffset, s.o.FirstOffset; offset < s.o.FirstOffset+5; {
		page, err := m.gen.Fetch(ctx, first(topic), offset, most)
		if err != nil {
			s.Fatalf("fetch at %d: %v", offset, err)
		}
		if len(page.Records) > 0 && page.Records[0].LeftOut > 0 && most == 20_000 {
			r := page.Records[0]
			if r.Offset != s.o.FirstOffset+2 || r.Value != nil || r.LeftOut < 300_000 || string(r.Key) != "k2" || len(r.Headers) != 2 || page.Next != s.o.FirstOffset+3 || len(page.Records) != 1 {
				s.Fatalf("the large record has offset %d, key %s, a value of %d bytes with %d left out and %d headers, alone: %v, and offset %d is next",
					r.Offset, r.Key, len(r.Value), r.LeftOut, len(r.Headers), len(page.Records) == 1, page.Next)
			}
			offset, most = r.Offset, r.LeftOut // as an inbox does
			continue
		}
		for _, r := range page.Records {
			if r.Offset != want || r.LeftOut != 0 {
				s.Fatalf("record %d has offset %d, and %d bytes of it are left out", want, r.Offset, r.LeftOut)
			}
			whole = whole || len(r.Value) == 300_000
			want++
		}
		offset = page.Next
	}
	if most == 20_000 || !whole {
		s.Errorf("the large record did not come without its value first, and whole with as many bytes: it came whole: %v", whole)
	}
}

func (s *suite) fetchEnds() {
	topic := s.o.Topic(s, 1)
	m := s.begin(topic)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	s.within("end a fetch whose context is done", func() {
		if page, _ := m.gen.Fetch(ctx, first(topic), s.o.FirstOffset, pageBytes); len(page.Records) > 0 {
			s.Errorf("an empty log gives %d records", len(page.Records))
		}
	})
}

func (s *suite) afterTheEnd() {
	topic := s.o.Topic(s, 1)
	s.o.Produce(s, topic, 0, numbered(3)...)
	if page, err := s.begin(topic).tryFetch(first(topic), 10); !errors.Is(err, source.ErrOffsetOutOfRange) {
		s.Errorf("at offset 10 of a log that ends at 3: %+v, %v, want ErrOffsetOutOfRange", page, err)
	}
}

func (s *suite) deleted() {
	topic := s.o.Topic(s, 1)
	s.o.Produce(s, topic, 0, numbered(10)...)
	s.o.Delete(s, topic, 0, s.o.FirstOffset+4)
	m := s.begin(topic)
	if from, end, err := m.gen.Bounds(s.Context(), first(topic)); from != s.o.FirstOffset+4 || end != s.o.FirstOffset+10 || err != nil {
		s.Errorf("the bounds of a log of 10 without its first 4 are %d and %d, %v", from, end, err)
	}
	if page, err := m.tryFetch(first(topic), s.o.FirstOffset+2); !errors.Is(err, source.ErrOffsetOutOfRange) {
		s.Errorf("at offset 2 of a log that begins at 4: %+v, %v, want ErrOffsetOutOfRange", page, err)
	}
	if got := m.read(first(topic), s.o.FirstOffset+4, 6); got[0].Offset != s.o.FirstOffset+4 {
		s.Errorf("the first record that is left comes with offset %d, want %d", got[0].Offset, s.o.FirstOffset+4)
	}
}

func (s *suite) commitAndRestart() {
	topic := s.o.Topic(s, 2)
	for p := range 2 {
		s.o.Produce(s, topic, p, numbered(10)...)
	}
	m := s.begin(topic)
	m.commit(first(topic), 3)
	m.commit(first(topic), 7)
	m.close()
	again := s.begin(topic)
	want := map[source.TopicPartition]source.Start{{Topic: topic}: {Committed: 7}, {Topic: topic, Partition: 1}: {Committed: source.NoOffset}}
	if got := again.gen.Assigned(); !maps.Equal(got, want) {
		s.Errorf("after a restart the partitions are %v, want %v", got, want)
	}
	if got := again.read(first(topic), 7, 3); got[0].Offset != 7 {
		s.Errorf("reading continues at %d, want 7", got[0].Offset)
	}
}

func (s *suite) leaveAndJoin() {
	topic := s.o.Topic(s, 1)
	m := s.begin(topic)
	m.commit(first(topic), 0)
	m.leave()
	m.leave()
	m.await(m.next(s.Context()))
	if got := m.gen.Assigned(); len(got) != 1 || got[first(topic)].Committed != 0 {
		s.Errorf("the next generation has %v, want the partition, with offset 0 committed", got)
	}
}

// two makes a group of two members that have shared a topic's partitions.
func (s *suite) two(topic string) (a, b *member) {
	s.Helper()
	a, b = s.begin(topic), s.join(topic)
	second := b.next(s.Context())
	a.over()
	a.leave()
	s.settle(a, b, a.next(s.Context()), second)
	return a, b
}

// settle waits until both members have generations that are not over: the group may begin anew when a member comes late.
func (s *suite) settle(a, b *member, first, second <-chan given) {
	s.Helper()
	for end := time.Now().Add(s.o.StepTimeout); ; {
		a.await(first)
		// A member that comes too late for this generation begins another, which ends it.
		select {
		case g := <-second:
			if g.err != nil {
				s.Fatalf("Next: %v", g.err)
			}
			b.gen = g.gen
			select {
			case <-a.gen.Over():
				b.leave()
				second = b.next(s.Context())
			case <-b.gen.Over():
				b.leave()
				second = b.next(s.Context())
			default:
				return
			}
		case <-a.gen.Over():
		}
		if time.Now().After(end) {
			s.Fatalf("two members have not shared the partitions within %s", s.o.StepTimeout)
		}
		a.leave()
		first = a.next(s.Context())
	}
}

func (s *suite) membersShare() {
	topic := s.o.Topic(s, 4)
	a, b := s.two(topic)
	all := maps.Clone(a.gen.Assigned())
	for tp := range b.gen.Assigned() {
		if _, both := all[tp]; both {
			s.Errorf("%s/%d is assigned to both members", tp.Topic, tp.Partition)
		}
		all[tp] = source.Start{}
	}
	if len(all) != 4 || len(a.gen.Assigned()) == 0 || len(b.gen.Assigned()) == 0 {
		s.Errorf("one member has %v of 4 partitions, and the other %v", a.gen.Assigned(), b.gen.Assigned())
	}
}

func (s *suite) handOver() {
	topic := s.o.Topic(s, 2)
	a, b := s.begin(topic), s.join(topic)
	second := b.next(s.Context())
	a.over()
	select {
	case g := <-second:
		s.Errorf("the second member is given %v while the first still has its partitions", g)
	case <-time.After(handover / 2): // less than what the source has to allow
	}
	a.leave()
	s.settle(a, b, a.next(s.Context()), second)
}

func (s *suite) commitAtHandover() {
	topic := s.o.Topic(s, 2)
	for p := range 2 {
		s.o.Produce(s, topic, p, numbered(10)...)
	}
	a, b := s.begin(topic), s.join(topic)
	second := b.next(s.Context())
	a.over()
	for p := range 2 {
		a.commit(source.TopicPartition{Topic: topic, Partition: p}, int64(4+p))
	}
	a.leave()
	s.settle(a, b, a.next(s.Context()), second)
	for _, m := range []*member{a, b} {
		for tp, start := range m.gen.Assigned() {
			if want := int64(4 + tp.Partition); start.Committed != want {
				s.Errorf("the next owner of %s/%d continues at %d, want %d, which was committed after Over and before Leave", tp.Topic, tp.Partition, start.Committed, want)
			}
		}
	}
}

func (s *suite) takeOver() {
	topic := s.o.Topic(s, 4)
	a, b := s.two(topic)
	a.close()
	for end := time.Now().Add(s.o.StepTimeout); ; {
		b.over()
		b.leave()
		b.await(b.next(s.Context()))
		if len(b.gen.Assigned()) == 4 {
			return
		}
		if time.Now().After(end) {
			s.Fatalf("the member that is left has %v, want all 4 partitions", b.gen.Assigned())
		}
	}
}

func (s *suite) nextEnds() {
	topic := s.o.Topic(s, 1)
	m := s.join(topic)
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	s.within("end Next, whose context is done", func() {
		if gen, err := m.session.Next(ctx); gen != nil && err == nil {
			m.gen = gen // The generation came first. An inbox leaves it then.
		}
	})
}

func (s *suite) concurrent() {
	const partitions, records = 4, 50
	topic := s.o.Topic(s, partitions)
	m := s.begin(topic)
	var mu sync.Mutex
	failed := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		s.Errorf(format, args...)
	}
	for p := range partitions {
		s.o.Produce(s, topic, p, numbered(records)...)
	}
	var readers sync.WaitGroup
	for p := range partitions {
		tp := source.TopicPartition{Topic: topic, Partition: p}
		readers.Go(func() {
			ctx, cancel := context.WithTimeout(s.Context(), s.o.StepTimeout)
			defer cancel()
			if _, _, err := m.gen.Bounds(ctx, tp); err != nil {
				failed("bounds of partition %d: %v", p, err)
			}
			for offset, want := s.o.FirstOffset, 0; want < records; {
				page, err := m.gen.Fetch(ctx, tp, offset, pageBytes)
				if err != nil {
					failed("fetch partition %d at %d: %v", p, offset, err)
					return
				}
				for _, r := range page.Records {
					if string(r.Value) != fmt.Sprint(want) || r.Offset < offset || r.Offset >= page.Next {
						failed("partition %d gives %s at offset %d, want %d", p, r.Value, r.Offset, want)
						return
					}
					want++
				}
				offset = page.Next
			}
		})
	}
	for offset := range int64(20) { // meanwhile
		m.commit(first(topic), offset)
	}
	readers.Wait()
}
