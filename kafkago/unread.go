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
func (k *unreads) take(tp source.TopicPartition, offset, maxBytes int64) *unread {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fewest == 0 || maxBytes < k.fewest {
		k.fewest = maxBytes
	}
	u := k.of[tp]
	delete(k.of, tp)
	if u == nil || u.offset != offset && u.again != offset {
		return nil
	}
	return u
}

func (k *unreads) keep(tp source.TopicPartition, u *unread) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if int64(len(u.packed)) > min(k.fewest, fetchBytes) {
		return
	}
	if k.of == nil {
		k.of = map[source.TopicPartition]*unread{}
	}
	k.of[tp] = u
}
