package inbox

import (
	"context"
	"sync"
)

// This file follows a group that takes and gives single partitions (cooperative rebalancing), while the others are read on.

// Incremental is a Generation whose partitions come and go while it lasts. Assigned returns those of the beginning.
//
// If nobody has called Changes, a change ends the generation: Over is closed, and the next generation has all partitions.
type Incremental interface {
	Generation

	// Changes returns a channel of what changes after the beginning, in order. It is the same at every call, and nothing comes after
	// Over was closed.
	Changes() <-chan Change

	// Release says that this node has released some of the partitions that a change revoked, so that the group may give them to
	// others. Bounds, Fetch and Commit are not called for them any more. It does not wait, and many goroutines may call it at once.
	Release(of []TopicPartition)
}

// Change is a change of the partitions of a generation.
type Change struct {
	// Added are new partitions, and where to start reading each. Nobody else has them any more.
	Added map[TopicPartition]Start

	// Revoked are those that the group wants back. It waits for Incremental.Release, for as long as it keeps a member.
	Revoked []TopicPartition
}

// held is what a generation has of partitions.
type held struct {
	saving sync.Mutex // one goroutine at a time saves, releases and commits

	mu sync.Mutex
	of map[TopicPartition]*heldPartition
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

func (h *held) get(tp TopicPartition) *heldPartition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[tp]
}

// hold starts to read partitions.
func (co *consumer) hold(g *group, h *held, gen Generation, given map[TopicPartition]Start, workers *workerPool) {
	co.memory.partitions.Add(int64(len(given)))
	for tp, start := range given {
		p := &heldPartition{partition: co.newPartition(workers, gen, tp, start), ended: make(chan struct{})}
		ctx, stop := context.WithCancel(g.ctx)
		p.stop = stop
		h.mu.Lock()
		h.of[tp] = p
		h.mu.Unlock()
		jobs, forget := withGrace(ctx, co.c.StopTimeout)
		g.run(func(context.Context) error {
			defer close(p.ended)
			defer forget()
			defer stop()
			return p.run(ctx, jobs)
		})
	}
}

func (co *consumer) newPartition(workers *workerPool, gen Generation, tp TopicPartition, start Start) *partition {
	return &partition{env: co.env, fences: co.fences, declarations: co.declarations, receiver: co.receiver, serial: &co.suspects, memory: co.memory,
		workers: workers, gen: gen, tp: tp, start: start, scheduler: newScheduler(co.c.BatchSize), freed: make(chan struct{}, 1), counted: map[int64]*delivery{}}
}

// take takes partitions out of those that are held. They are to be released.
func (co *consumer) take(h *held, of []TopicPartition) (parts []*partition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, tp := range of {
		if p := h.of[tp]; p != nil {
			parts = append(parts, p.partition)
			delete(h.of, tp)
		}
	}
	co.memory.partitions.Add(-int64(len(parts)))
	return parts
}

func (co *consumer) takeAll(h *held) []*partition {
	var of []TopicPartition
	for _, p := range h.all() {
		of = append(of, p.tp)
	}
	return co.take(h, of)
}

// follow starts and stops partitions as the group gives and takes them, until ctx ends.
func (co *consumer) follow(ctx context.Context, g *group, h *held, gen Incremental, workers *workerPool) {
	for {
		select {
		case c := <-gen.Changes():
			if len(c.Revoked) > 0 {
				g.run(func(ctx context.Context) error { co.giveBack(h, gen, c.Revoked); return nil })
			}
			co.hold(g, h, gen, c.Added, workers)
		case <-ctx.Done():
			return
		}
	}
}

// giveBack lets the handlers of some partitions finish, as at the end of a generation, and releases them.
func (co *consumer) giveBack(h *held, gen Incremental, of []TopicPartition) {
	for _, tp := range of {
		if p := h.get(tp); p != nil {
			p.stop()
		}
	}
	for _, tp := range of {
		if p := h.get(tp); p != nil {
			<-p.ended
		}
	}
	h.saving.Lock()
	defer h.saving.Unlock()
	co.release(gen, co.take(h, of))
	gen.Release(of)
}
