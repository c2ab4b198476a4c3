package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
)

// This file keeps a key with many events from holding up the other keys of its partition. While such a key fills what may be in
// progress, and its handler is slow, its next event is stored: those that follow are then stored too, many at a time, and the
// partition goes on. Run handles them, in their order.
//
// That is not done for a key whose events come quickly, because stored events take longer, nor where no event of another key waits.

const (
	// hotShare is the part of what may be in progress that the waiting events of a hot key take, at least: one in so many.
	hotShare = 4

	// hotAfter is how long the next event of a hot key has waited, at least.
	hotAfter = 250 * time.Millisecond

	// hotEvery is how often one looks for a hot key, at most: whenever something is settled, and after hotAfter.
	hotEvery = 50 * time.Millisecond
)

// hottest is the first of the waiting events of the key that has most of them, by number or by bytes. It is nil unless they are so
// many, and it has waited since then, and may be stored.
func (s *scheduler) hottest(events, bytes int, since time.Time) *job {
	var hot *keyQueue
	for _, line := range s.keys {
		if len(line.waiting) < events && (len(line.waiting) == 0 || line.bytes() < bytes) || hot != nil && len(line.waiting) < len(hot.waiting) {
			continue
		}
		hot = line
	}
	if hot == nil {
		return nil
	}
	if j := hot.waiting[0]; j.kind == jobAlone && j.intake == nil && !j.readAt.After(since) {
		return j
	}
	return nil
}

// bytes are those of the events that wait.
func (k *keyQueue) bytes() (n int) {
	for _, j := range k.waiting {
		n += j.bytes()
	}
	return n
}

// otherKey reports that one of the events has another key.
func otherKey(ds []*delivery, key string) bool {
	for _, d := range ds {
		if d.e.Key != key {
			return true
		}
	}
	return false
}

// storeHotKey stores the next event of a hot key in its turn, if an event of another key is among those that are the next to begin, and
// if there is room for what may follow it. The reader calls it while no more events may begin.
func (p *partition) storeHotKey(ctx context.Context, next []*delivery) {
	now := time.Now()
	if len(next) == 0 || p.replaying || now.Sub(p.hotLooked) < hotEvery {
		return
	}
	p.hotLooked = now
	hot := func() *job {
		if j := p.scheduler.hottest(readahead.MaxAhead/hotShare, int(p.memory.Share()/hotShare), now.Add(-hotAfter)); j != nil && otherKey(next, j.ds[0].e.Key) {
			return j
		}
		return nil
	}
	p.mu.Lock()
	found := hot() != nil
	p.mu.Unlock()
	if !found || !p.receiver.queues.quota.roomy(ctx, readahead.MaxAhead) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	j := hot() // The one found may have begun meanwhile.
	if j == nil {
		return
	}
	d := j.ds[0]
	j.intake = p.newIntake(d, func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return p.receiver.queues.store(ctx, tx, d, past{}, nil, Stored)
	}, j.stop)
	if _, say := p.limiter.Allow(fmt.Sprint("hot key of ", p.tp), time.Minute, now); say {
		p.c.Logger.Info("a key with many events holds up its partition: they are stored", append(p.attrs(d.e), "partition", p.tp.Partition, "offset", d.from.offset)...)
	}
}
