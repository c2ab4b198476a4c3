package relay

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes of the events that a relay has in memory, of all its lanes. A page is read when there is room for
// the largest one, and gives back what it does not need; the rest it holds until the lane has done with its events.
type budget struct {
	room *semaphore.Weighted
	page int64 // what is taken before a page is read
}

// inMemory is how many times its bytes an event takes: as it was read, and as it is encoded for a publisher.
const inMemory = 2

func newBudget(bytes, page int64) *budget {
	return &budget{room: semaphore.NewWeighted(bytes), page: min(page, bytes)}
}

// take waits for room for a page. Lanes get it in the order in which they ask.
func (b *budget) take(ctx context.Context) error { return b.room.Acquire(ctx, b.page) }

// keep gives back what a page of so many bytes does not need, and returns what it keeps. One event alone may be larger than
// a page: it then counts as one page.
func (b *budget) keep(bytes int64) (kept int64) {
	kept = min(bytes, b.page)
	b.room.Release(b.page - kept)
	return kept
}

func (b *budget) give(bytes int64) {
	if bytes > 0 {
		b.room.Release(bytes)
	}
}

// bytes is how much of the budget a page needs.
func (p *page) bytes() (sum int64) {
	for i := range p.events {
		sum += int64(eventBytes(&p.events[i]))
	}
	return sum
}

// eventBytes is about what an event takes in memory.
func eventBytes(e *logEvent) int {
	n := 256 + len(e.Payload) + len(e.Key)
	for name, value := range e.Headers {
		n += 32 + len(name) + len(value)
	}
	return n
}
