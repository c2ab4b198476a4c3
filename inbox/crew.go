package inbox

import (
	"container/heap"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/failpoint"
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

// start starts the workers; end lets them go once every job is done.
func (c *crew) start() {
	for range c.receiver.c.Workers {
		w := &worker{crew: c, chain: chain{receiver: c.receiver}}
		c.wg.Go(w.run)
	}
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

// worker does one job after the other.
type worker struct {
	crew  *crew
	chain chain
	last  *tried // what only lacks its COMMIT
	hand  *job   // what is being begun

	since    time.Time // when it took a job of the crew's
	followed int       // transactions of that job's key since then
}

// tried is a job whose handler has run.
type tried struct {
	job   *job
	out   Outcome
	begun time.Time
}

func (w *worker) run() {
	for {
		if w.hand = w.next(); w.hand == nil {
			return
		}
		w.work()
	}
}

// next is the next job: what follows the last one's key, unless others have waited long enough, else the crew's. While there
// is none, nothing is left uncommitted.
func (w *worker) next() *job {
	if w.last != nil {
		if !w.long() || !w.crew.some() {
			if j := w.last.job.p.follower(w.last.job, w.crew.receiver.queues.followers(w.last.out)); j != nil {
				w.followed++
				return j
			}
		}
		if j := w.take(false); j != nil {
			return j
		}
		w.commit()
	}
	return w.take(true)
}

// take takes a job of the crew's.
func (w *worker) take(wait bool) *job {
	j := w.crew.take(wait)
	w.since, w.followed = time.Now(), 0
	return j
}

// long says that the worker has been with one key for long. Its chain does not tell: it begins anew with each group of
// followers.
func (w *worker) long() bool { return w.followed >= maxLinks || time.Since(w.since) > maxChain }

// work takes the job in hand up to its COMMIT, or to its end where it is not an easy one.
func (w *worker) work() {
	j := w.hand
	if j.p.stopped() {
		j.p.working.Done()
		return
	}
	j.p.taken(j)
	if j.intake != nil {
		w.commit()
		switch {
		case w.hand == nil: // It waits behind what was to be committed.
		case j.p.stopped(): // That was decided before what came first had ended.
			j.p.working.Done()
		default:
			w.finish(j, nil)
		}
		return
	}
	if j.behind {
		// The lock of its key may be waited for, and what came before must not wait with it.
		if w.commit(); w.hand == nil {
			return
		}
		if _, room := w.crew.receiver.queues.quota.stock.add(len(j.ds), w.crew.receiver.c.MaxStored); !room {
			w.redo(j, errOneByOne)
			return
		}
	}
	begun := time.Now()
	out, err := w.chain.try(j.ctx, taking{j.ds, 1, j.behind}, w.committed)
	if err != nil && j.behind {
		w.crew.receiver.queues.quota.stock.leave(len(j.ds))
	}
	switch {
	case errors.Is(err, errNotTried):
		if w.hand != nil {
			w.work()
		}
	case err == nil:
		w.last = &tried{j, out, begun}
		if w.chain.long() {
			w.commit()
		}
	default:
		w.redo(j, err)
	}
}

// commit commits the last job.
func (w *worker) commit() {
	if w.last != nil {
		w.committed(w.chain.commit(w.last.job.ctx))
	}
}

// committed notes the answer to the last job's COMMIT.
func (w *worker) committed(err error) {
	last := w.last
	if last == nil {
		return
	}
	w.last = nil
	j := last.job
	if err == nil {
		failpoint.Hit(failpoint.InboxCommitted)
		for _, d := range j.ds {
			w.crew.receiver.report(d, last.out, time.Since(last.begun))
		}
		j.p.settle(j.ds...)
		j.p.conclude(j, nil)
		return
	}
	if j.follower != nil && j.follower == w.hand { // It may have to wait for longer than this worker does.
		j.p.putBack(j)
		w.hand = nil
	}
	w.redo(j, err)
}

// redo goes on with a job that failed when it was made the easy way. A job of several events is taken apart, and costs none of
// them an attempt: only one is to blame, or none.
func (w *worker) redo(j *job, failed error) {
	if len(j.ds) == 1 {
		j.intake = j.p.intake(j.ds[0], nil)
		w.finish(j, failed)
		return
	}
	var f *failure
	inDoubt := errors.As(failed, &f) && f.fault == faultUnknown
	for _, d := range j.ds {
		d.inDoubt = d.inDoubt || inDoubt
	}
	j.p.split(j)
}

// finish brings a single event to its outcome, or to where it has to wait for room. failed is why its first trial did not
// commit, where that was made.
func (w *worker) finish(j *job, failed error) {
	_, err := w.crew.receiver.receive(j.ctx, j.intake, failed)
	if errors.Is(err, ErrFull) {
		j.p.setAside(j, err)
		return
	}
	if err == nil {
		j.p.settle(j.ds...)
	}
	j.p.conclude(j, err)
}
