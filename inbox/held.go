package inbox

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file is what a node has of partitions.

// held is what a generation has of partitions.
type held struct {
	until  *readahead.Bound // of all partitions
	saving sync.Mutex       // one goroutine at a time saves, releases and commits

	mu sync.Mutex
	of map[source.TopicPartition]*heldPartition
}

func newHeld(until *readahead.Bound) *held {
	return &held{until: until, of: map[source.TopicPartition]*heldPartition{}}
}

type heldPartition struct {
	*partition
	stop  context.CancelFunc
	ended chan struct{} // closed when nothing of it is in progress any more
}

// all are the partitions that are held.
func (h *held) all() (parts []*partition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.of {
		parts = append(parts, p.partition)
	}
	return parts
}

// each calls do with all partitions, none of which is released meanwhile.
func (h *held) each(do func(parts []*partition) error) error {
	h.saving.Lock()
	defer h.saving.Unlock()
	return do(h.all())
}

func (h *held) get(tp source.TopicPartition) *heldPartition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[tp]
}
