package kafkago

import (
	"sync"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// unread is what a fetch brought and no page had room for yet.
type unread struct {
	offset       int64
	again        int64 // the offset of a record whose value was left out, which may be asked for again; offset if there is none
	packed       []byte
	transactions *transactions
}

// unreads keeps, for each partition, what the next page reads without another fetch. It keeps no more bytes of a partition than
// the fewest that a page was asked to have. Safe for use by many goroutines.
type unreads struct {
	mu     sync.Mutex
	of     map[source.TopicPartition]*unread
	fewest int64
}

// take returns what is kept for an offset; nil if nothing is. Whatever is kept for another offset is dropped.
func (un *unreads) take(tp source.TopicPartition, offset, maxBytes int64) *unread {
	un.mu.Lock()
	defer un.mu.Unlock()
	if un.fewest == 0 || maxBytes < un.fewest {
		un.fewest = maxBytes
	}
	u := un.of[tp]
	delete(un.of, tp)
	if u == nil || u.offset != offset && u.again != offset {
		return nil
	}
	return u
}

func (un *unreads) keep(tp source.TopicPartition, u *unread) {
	un.mu.Lock()
	defer un.mu.Unlock()
	if int64(len(u.packed)) > min(un.fewest, fetchBytes) {
		return
	}
	if un.of == nil {
		un.of = map[source.TopicPartition]*unread{}
	}
	un.of[tp] = u
}
