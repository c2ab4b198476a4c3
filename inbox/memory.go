package inbox

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file bounds the bytes of the events that a node has in memory, of all its partitions.

// memory divides Config.MemoryBudget: an eighth for what sources keep packed, an eighth for the pages that are being read, half for
// events in progress, and a quarter for events that are larger than a page. A partition has a share of each, so that one in which
// nothing settles leaves the others theirs. Safe for use by many goroutines.
type memory struct {
	bytes      int64
	room       *semaphore.Weighted // pages and events in progress
	large      *semaphore.Weighted // those of pages that were read with more bytes than a page's
	partitions atomic.Int64
}

const (
	largestPage  = 4 << 20
	smallestPage = 64 << 10
	largestShare = 16 << 20
)

func newMemory(bytes int64) *memory {
	return &memory{bytes: bytes, room: semaphore.NewWeighted(bytes / 8 * 5), large: semaphore.NewWeighted(bytes / 4)}
}

// page is how many bytes a page of a partition has, unless a record is larger.
func (m *memory) page() int64 {
	return min(max(m.bytes/8/max(m.partitions.Load(), 1), smallestPage), largestPage)
}

// share is how many bytes of events a partition may have in progress before it stops fetching.
func (m *memory) share() int64 {
	return min(max(m.bytes/2/max(m.partitions.Load(), 1), smallestPage), largestShare)
}

// most is how many bytes one event may have.
func (m *memory) most() int64 { return m.bytes / 4 }

// take waits for so many bytes. must is false if fewer serve, too: then it takes those of a page where there is no room for more.
func (m *memory) take(ctx context.Context, bytes int64, must bool) (*reservation, error) {
	page := m.page()
	if bytes = min(bytes, m.most()); bytes > page {
		if m.large.TryAcquire(bytes) {
			return &reservation{m.large, bytes}, nil
		}
		if must {
			if err := m.large.Acquire(ctx, bytes); err != nil {
				return nil, err
			}
			return &reservation{m.large, bytes}, nil
		}
	}
	if err := m.room.Acquire(ctx, page); err != nil {
		return nil, err
	}
	return &reservation{m.room, page}, nil
}

// reservation is what a page has taken, until its events have it. One goroutine at a time uses it.
type reservation struct {
	of    *semaphore.Weighted
	bytes int64
}

// part is what one of the page's events takes with it: its bytes, as long as the page has any.
func (h *reservation) part(bytes int64) reservation {
	part := reservation{h.of, min(bytes, h.bytes)}
	h.bytes -= part.bytes
	return part
}

// give gives back what is held.
func (h *reservation) give() {
	if h.bytes > 0 {
		h.of.Release(h.bytes)
		h.bytes = 0
	}
}

// recordCost is about what a record takes in memory.
func recordCost(r *source.Record) int64 {
	n := 256 + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 64 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}
