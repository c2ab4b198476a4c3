package readahead

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file bounds the bytes of the events that a node has in memory, of all its partitions.

// Memory divides Config.MemoryBudget: an eighth for what sources keep packed, an eighth for the pages that are being read, half for
// events in progress, and a quarter for events that are larger than a page. A partition has a share of each, so that one in which
// nothing settles leaves the others theirs. Safe for use by many goroutines.
type Memory struct {
	Bytes      int64
	Room       *semaphore.Weighted // pages and events in progress
	Large      *semaphore.Weighted // those of pages that were read with more bytes than a page's
	Partitions atomic.Int64
}

const (
	largestPage  = 4 << 20
	smallestPage = 64 << 10
	largestShare = 16 << 20
)

// NewMemory returns a Memory of so many bytes.
func NewMemory(bytes int64) *Memory {
	return &Memory{
		Bytes: bytes,
		Room:  semaphore.NewWeighted(bytes / 8 * 5),
		Large: semaphore.NewWeighted(bytes / 4),
	}
}

// Page is how many bytes a page of a partition has, unless a record is larger.
func (m *Memory) Page() int64 {
	return min(max(m.Bytes/8/max(m.Partitions.Load(), 1), smallestPage), largestPage)
}

// Share is how many bytes of events a partition may have in progress before it stops fetching.
func (m *Memory) Share() int64 {
	return min(max(m.Bytes/2/max(m.Partitions.Load(), 1), smallestPage), largestShare)
}

// Most is how many bytes one event may have.
func (m *Memory) Most() int64 { return m.Bytes / 4 }

// Take waits for so many bytes. must is false if fewer serve, too: then it takes those of a page where there is no room for more.
func (m *Memory) Take(ctx context.Context, bytes int64, must bool) (*Reservation, error) {
	page := m.Page()
	if bytes = min(bytes, m.Most()); bytes > page {
		if m.Large.TryAcquire(bytes) {
			return &Reservation{m.Large, bytes}, nil
		}
		if must {
			if err := m.Large.Acquire(ctx, bytes); err != nil {
				return nil, err
			}
			return &Reservation{m.Large, bytes}, nil
		}
	}
	if err := m.Room.Acquire(ctx, page); err != nil {
		return nil, err
	}
	return &Reservation{m.Room, page}, nil
}

// Reservation is what a page has taken, until its events have it. One goroutine at a time uses it.
type Reservation struct {
	of    *semaphore.Weighted
	Bytes int64
}

// Part is what one of the page's events takes with it: its bytes, as long as the page has any.
func (r *Reservation) Part(bytes int64) Reservation {
	part := Reservation{r.of, min(bytes, r.Bytes)}
	r.Bytes -= part.Bytes
	return part
}

// Give gives back what is held.
func (r *Reservation) Give() {
	if r.Bytes > 0 {
		r.of.Release(r.Bytes)
		r.Bytes = 0
	}
}

// RecordCost is about what a record takes in memory.
func RecordCost(r *source.Record) int64 {
	n := 256 + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += 64 + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}
