package inbox

import (
	"math"
	"sync"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file decides where ConsumeUntil stops. It is pure, but for the mutex: values in, values out.

// stretch is what is to be read of a partition: the offsets from first to before until.
type stretch struct{ first, until int64 }

// standing is what Postgres says of a partition. The zero value is a partition that nobody has claimed yet.
type standing struct {
	claimed  bool
	position int64
	held     string // why it is held; "": it is not
}

// reached reports that everything of a stretch is settled. The position decides, not an event: the last offsets may have none. A log
// that begins after the stretch has nothing of it, which a consumer without a position needs nothing of.
func (s stretch) reached(at standing) bool {
	if !at.claimed {
		return s.until <= s.first
	}
	return at.held == "" && at.position >= s.until
}

// bound is where each partition stops, for the readers. A nil bound is none. Many goroutines may use it at once.
type bound struct {
	mu  sync.Mutex
	all map[source.TopicPartition]stretch
}

// boundOf is the bound of a session; nil if it has none.
func boundOf(s source.Session) *bound {
	if b, ok := s.(interface{ limits() *bound }); ok {
		return b.limits()
	}
	return nil
}

// until is the first offset that is not read. Partitions that came later are not part of the bound, and nothing of them is read.
func (b *bound) until(tp source.TopicPartition) int64 {
	if b == nil {
		return math.MaxInt64
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[tp].until
}

// stretches are all, as they are now.
func (b *bound) stretches() map[source.TopicPartition]stretch {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[source.TopicPartition]stretch, len(b.all))
	for tp, s := range b.all {
		all[tp] = s
	}
	return all
}

// refit fits the stretches to the logs as they are now, and returns those that became shorter: a log that was cut short never reaches the
// end that it had.
func (b *bound) refit(now map[source.TopicPartition]source.Extent) map[source.TopicPartition]stretch {
	b.mu.Lock()
	defer b.mu.Unlock()
	shorter := map[source.TopicPartition]stretch{}
	for tp, s := range b.all {
		x, ok := now[tp]
		if !ok {
			continue
		}
		fitted := stretch{max(s.first, x.First), min(s.until, x.End)}
		b.all[tp] = fitted
		if fitted.until < s.until {
			shorter[tp] = s
		}
	}
	return shorter
}

// cut is the part of a page before an offset.
func cut(pg source.Page, until int64) source.Page {
	n := len(pg.Records)
	for n > 0 && pg.Records[n-1].Offset >= until {
		n--
	}
	pg.Records = pg.Records[:n]
	pg.Next = min(pg.Next, until)
	return pg
}
