package sourcetest

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// extent asks a session for the extent of its partitions. A session that is not source.Bounded promises none.
func (m *member) extent(at time.Time) (all map[source.TopicPartition]source.Extent, bounded bool) {
	m.Helper()
	session, ok := m.session.(source.Bounded)
	if !ok {
		m.Log("not checked: the sessions are not source.Bounded")
		return nil, false
	}
	ctx, cancel := context.WithTimeout(m.Context(), m.o.StepTimeout)
	defer cancel()
	for {
		all, err := session.Extents(ctx, at)
		if err == nil {
			return all, true
		}
		select { // A new topic is not known everywhere at once.
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			m.Fatalf("Extents: %v", err)
		}
	}
}

// wantExtent compares the extent of one partition.
func (m *member) wantExtent(what string, at time.Time, tp source.TopicPartition, want source.Extent) {
	m.Helper()
	if all, bounded := m.extent(at); bounded && all[tp] != want {
		m.Errorf("%s: the extent is %+v, want %+v", what, all[tp], want)
	}
}

func (s *suite) extents() {
	one, two := s.o.Topic(s, 2), s.o.Topic(s, 1)
	s.o.Produce(s, one, 1, numbered(5)...)
	m := s.join(one, two)
	all, bounded := m.extent(time.Time{}) // before it has joined
	if !bounded {
		return
	}
	want := map[source.TopicPartition]source.Extent{{Topic: one}: {}, {Topic: one, Partition: 1}: {End: 5, At: 5}, {Topic: two}: {}}
	if len(all) != len(want) {
		s.Errorf("it names %d partitions, want %d: those without records, too", len(all), len(want))
	}
	for tp, x := range want {
		if all[tp] != x {
			s.Errorf("%s/%d: the extent is %+v, want %+v", tp.Topic, tp.Partition, all[tp], x)
		}
	}
	s.o.Produce(s, two, 0, numbered(1)...)
	m.wantExtent("after a record came", time.Time{}, first(two), source.Extent{End: 1, At: 1})
}

func (s *suite) extentAtATime() {
	topic := s.o.Topic(s, 1)
	m := s.begin(topic)
	if _, bounded := m.extent(time.Time{}); !bounded {
		return
	}
	// Write until two records in a row have different times.
	const records = 2
	var second time.Time
	at := int64(0)
	for n := 0; second.IsZero(); n += records {
		s.o.Produce(s, topic, 0, numbered(1)...)
		time.Sleep(2 * time.Millisecond) // sleep: the times of records are the subject
		s.o.Produce(s, topic, 0, numbered(1)...)
		got := m.read(first(topic), int64(n), records)
		if got[1].Time.After(got[0].Time) {
			second, at = got[1].Time, got[1].Offset
		}
	}
	end := at + 1
	m.wantExtent("at the time of the last record", second, first(topic), source.Extent{End: end, At: at})
	m.wantExtent("at a time before all", second.Add(-24*time.Hour), first(topic), source.Extent{End: end, At: 0})
	m.wantExtent("at a time after all", second.Add(24*time.Hour), first(topic), source.Extent{End: end, At: end})
}

func (s *suite) extentAfterDeletion() {
	topic := s.o.Topic(s, 1)
	s.o.Produce(s, topic, 0, numbered(5)...)
	s.o.Delete(s, topic, 0, 3)
	s.join(topic).wantExtent("after the deletion of three records", time.Time{}, first(topic), source.Extent{
		First: 3,
		End:   5,
		At:    5,
	})
}
