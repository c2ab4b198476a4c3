package readahead

import (
	"math"
	"sync"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file decides where ConsumeUntil stops. It is pure, but for the mutex: values in, values out.

// Stretch is what is to be read of a partition: the offsets from first to before until.
type Stretch struct{ First, Until int64 }

// Standing is what Postgres says of a partition. The zero value is a partition that nobody has claimed yet.
type Standing struct {
	Claimed  bool
	Position int64
	Held     string // why it is held; "": it is not
}

// Reached reports that everything of a stretch is settled. The position decides, not an event: the last offsets may have none. A log
// that begins after the stretch has nothing of it, which a consumer without a position needs nothing of.
func (s Stretch) Reached(at Standing) bool {
	if !at.Claimed {
		return s.Until <= s.First
	}
	return at.Held == "" && at.Position >= s.Until
}

// Bound is where each partition stops, for the readers. A nil bound is none. Many goroutines may use it at once.
type Bound struct {
	mu  sync.Mutex
	All map[source.TopicPartition]Stretch
}

// BoundOf is the bound of a session; nil if it has none.
func BoundOf(s source.Session) *Bound {
	if b, ok := s.(interface{ Limits() *Bound }); ok {
		return b.Limits()
	}
	return nil
}

// Until is the first offset that is not read. Partitions that came later are not part of the bound, and nothing of them is read.
func (b *Bound) Until(tp source.TopicPartition) int64 {
	if b == nil {
		return math.MaxInt64
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.All[tp].Until
}

// Stretches are all, as they are now.
func (b *Bound) Stretches() map[source.TopicPartition]Stretch {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[source.TopicPartition]Stretch, len(b.All))
	for tp, s := range b.All {
		all[tp] = s
	}
	return all
}

// Refit fits the stretches to the logs as they are now, and returns those that became shorter: a log that was cut short never reaches the
// end that it had.
func (b *Bound) Refit(now map[source.TopicPartition]source.Extent) map[source.TopicPartition]Stretch {
	b.mu.Lock()
	defer b.mu.Unlock()
	shorter := map[source.TopicPartition]Stretch{}
	for tp, s := range b.All {
		x, ok := now[tp]
		if !ok {
			continue
		}
		fitted := Stretch{max(s.First, x.First), min(s.Until, x.End)}
		b.All[tp] = fitted
		if fitted.Until < s.Until {
			shorter[tp] = s
		}
	}
	return shorter
}

// Cut is the part of a page before an offset.
func Cut(pg source.Page, until int64) source.Page {
	n := len(pg.Records)
	for n > 0 && pg.Records[n-1].Offset >= until {
		n--
	}
	pg.Records = pg.Records[:n]
	pg.Next = min(pg.Next, until)
	return pg
}
