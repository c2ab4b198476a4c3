package inbox

import (
	"container/heap"
	"sync"
)

// crew is the workers of a node: they take the jobs of all its partitions. Every other job is the one whose event was read
// first: else each event of a busy key would wait once more for all other keys. Those between come in the order in which
// they became ready: else as many slow keys as there are workers would keep all that was read later waiting. A worker keeps
// a chain, so that the next job's transaction begins in the round trip that commits the last one's.
type crew struct {
	receiver *receiver
	wg       sync.WaitGroup

	mu      sync.Mutex
	more    *sync.Cond
	read    int64 // events that were read
	waiting int   // jobs that are ready
	first   readFirst
	queue   []*ready // in the order in which they became ready
	byRead  bool     // the next is taken from first
	ended   bool
}

// ready is a job that no worker has yet. It stays in the one order for a while when it was taken from the other.
type ready struct {
	*job
	taken bool
}

// readFirst is a heap of jobs, by when they were read.
type readFirst []*ready

func (r readFirst) Len() int           { return len(r) }
func (r readFirst) Less(i, j int) bool { return r[i].read < r[j].read }
func (r readFirst) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *readFirst) Push(j any)        { *r = append(*r, j.(*ready)) }

func (r *readFirst) Pop() any {
	last := len(*r) - 1
	j := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return j
}

func newCrew(rec *receiver) *crew {
	c := &crew{receiver: rec}
	c.more = sync.NewCond(&c.mu)
	return c
}

func (c *crew) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.more.Broadcast()
	c.wg.Wait()
}

// add never waits: a partition has no more than maxAhead events in hand.
func (c *crew) add(j *job) {
	c.mu.Lock()
	r := &ready{job: j}
	heap.Push(&c.first, r)
	c.queue = append(c.queue, r)
	c.waiting++
	c.mu.Unlock()
	c.more.Signal()
}

// number numbers an event that was read.
func (c *crew) number() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read++
	return c.read
}

// some says whether a job is ready.
func (c *crew) some() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting > 0
}

// take returns the next job. nil: there is none now, or, if it was to wait, there will be none.
func (c *crew) take(wait bool) *job {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting == 0 {
		if !wait || c.ended {
			return nil
		}
		c.more.Wait()
	}
	c.byRead = !c.byRead
	for {
		var r *ready
		if c.byRead {
			r = heap.Pop(&c.first).(*ready)
		} else {
			r, c.queue[0], c.queue = c.queue[0], nil, c.queue[1:]
		}
		if r.taken {
			continue
		}
		r.taken = true
		if c.waiting--; c.waiting == 0 { // What is left was taken from the other order.
			c.first, c.queue = nil, nil
		}
		return r.job
	}
}
