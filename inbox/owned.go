package inbox

import (
	"context"
	"sync"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file is what a node has of partitions.

// owned is what a generation has of partitions.
type owned struct {
	until  *readahead.Bound // of all partitions
	saving sync.Mutex       // one goroutine at a time saves, releases and commits

	mu sync.Mutex
	of map[source.TopicPartition]*ownedPartition
}

func newOwned(until *readahead.Bound) *owned {
	return &owned{until: until, of: map[source.TopicPartition]*ownedPartition{}}
}

type ownedPartition struct {
	*partition
	stop  context.CancelFunc
	ended chan struct{} // closed when nothing of it is in progress any more
}

// all are the partitions that a node has.
func (o *owned) all() (parts []*partition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.of {
		parts = append(parts, p.partition)
	}
	return parts
}

// each calls do with all partitions, none of which is released meanwhile.
func (o *owned) each(do func(parts []*partition) error) error {
	o.saving.Lock()
	defer o.saving.Unlock()
	return do(o.all())
}

func (o *owned) get(tp source.TopicPartition) *ownedPartition {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[tp]
}
