package relay

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes of the events that a relay has in memory, of all its lanes. A page is read when there is room for
// the largest one, and gives back what it does not need. The rest it gives back event by event, as the lane has done with them.
type budget struct {
	room *semaphore.Weighted
	page int64 // what is taken before a page is read

	// debt is what is in memory beyond all room: pages may turn out larger than one, by their last event. What is given back
	// pays it first. Invariant: what is in memory is what is taken from room, and debt.
	debt atomic.Int64
}

// inMemory is how many times its bytes an event takes: as it was read, and as it is encoded for a publisher.
const inMemory = 2

func newBudget(bytes, page int64) *budget {
	return &budget{room: semaphore.NewWeighted(bytes), page: min(page, bytes)}
}

// take waits for room for a page. Lanes get it in the order in which they ask.
func (b *budget) take(ctx context.Context) error { return b.room.Acquire(ctx, b.page) }

// tryTake is take without waiting: it says whether there was room.
func (b *budget) tryTake() bool { return b.room.TryAcquire(b.page) }

// keep gives back what a page of so many bytes does not need, and returns what it keeps. One that is larger keeps what was
// taken: see owe.
func (b *budget) keep(bytes int64) (kept int64) {
	kept = min(bytes, b.page)
	b.room.Release(b.page - kept)
	return kept
}

// owe counts what is in memory although nothing was taken for it. It never waits.
func (b *budget) owe(bytes int64) {
	for part := bytes; part > 0; part /= 2 {
		for bytes >= part && b.room.TryAcquire(part) {
			bytes -= part
		}
	}
	b.debt.Add(max(bytes, 0))
}

func (b *budget) give(bytes int64) {
	for debt := b.debt.Load(); debt > 0 && bytes > 0; debt = b.debt.Load() {
		if paid := min(debt, bytes); b.debt.CompareAndSwap(debt, debt-paid) {
			bytes -= paid
		}
	}
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

// keep notes what a page needs of the budget, of which room for one was taken.
func (l *lane) keep(p *page) {
	bytes := inMemory * p.bytes()
	p.kept = l.r.budget.keep(bytes)
	if bytes > p.kept {
		l.r.budget.owe(bytes - p.kept)
		p.kept = bytes
	}
}
