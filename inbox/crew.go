package inbox

import (
	"errors"
	"sync"
	"time"
)

// crew is the workers of a node: they take the jobs of all its partitions in the order in which they came. A worker
// keeps a chain, so that the next job's transaction begins in the round trip that commits the last one's.
type crew struct {
	in *Inbox
	wg sync.WaitGroup

	mu    sync.Mutex
	some  *sync.Cond
	ready []job
	ended bool
}

func newCrew(in *Inbox) *crew {
	c := &crew{in: in}
	c.some = sync.NewCond(&c.mu)
	return c
}

// start starts the workers; end lets them go once every job is done.
func (c *crew) start() {
	for range c.in.c.Workers {
		w := &worker{crew: c, chain: chain{in: c.in}}
		c.wg.Go(w.run)
	}
}

func (c *crew) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.some.Broadcast()
	c.wg.Wait()
}

// add never waits: a partition has no more than maxAhead events in hand.
func (c *crew) add(j job) {
	c.mu.Lock()
	c.ready = append(c.ready, j)
	c.mu.Unlock()
	c.some.Signal()
}

// take returns the next job. False: there is none now, or, if it was to wait, there will be none.
func (c *crew) take(wait bool) (job, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.ready) == 0 {
		if !wait || c.ended {
			return job{}, false
		}
		c.some.Wait()
	}
	j := c.ready[0]
	c.ready[0] = job{}
	c.ready = c.ready[1:]
	return j, true
}

// worker does one job after the other.
type worker struct {
	crew  *crew
	chain chain
	last  *tried // what only lacks its COMMIT
}

// tried is a job whose handler has run.
type tried struct {
	job   job
	out   Outcome
	begun time.Time
}

func (w *worker) run() {
	for {
		j, ok := w.next()
		if !ok {
			return
		}
		w.work(j)
	}
}

// next is the next job: what follows the last one's key, else what has waited longest. While there is none, nothing is
// left uncommitted.
func (w *worker) next() (job, bool) {
	if w.last != nil {
		if j, ok := w.last.job.p.follower(&w.last.job); ok {
			return j, true
		}
		if j, ok := w.crew.take(false); ok {
			return j, true
		}
		w.commit()
	}
	return w.crew.take(true)
}

// work takes a job up to its COMMIT, or to its end where it is not an easy one.
func (w *worker) work(j job) {
	if j.p.stopped() {
		j.p.working.Done()
		return
	}
	if j.first != nil {
		w.commit()
		if j.p.stopped() { // That was decided before what came first had ended.
			j.p.working.Done()
			return
		}
		w.finish(j, j.first, nil)
		return
	}
	begun := time.Now()
	out, err := w.chain.try(j.ctx, j.ds, 1, w.committed)
	switch {
	case errors.Is(err, errNotTried):
		w.work(j)
	case err == nil:
		w.last = &tried{j, out, begun}
		if w.chain.long() {
			w.commit()
		}
	case len(j.ds) > 1:
		w.oneByOne(j, err)
	default:
		w.finish(j, w.crew.in.alone(j.ds[0], 1), err)
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
	switch {
	case err == nil:
		for _, d := range j.ds {
			w.crew.in.report(d, last.out, time.Since(last.begun))
			j.p.settle(d.from.offset)
		}
		j.p.conclude(j, nil)
	case len(j.ds) > 1:
		w.oneByOne(j, err)
	default:
		w.finish(j, w.crew.in.alone(j.ds[0], 1), err)
	}
}

// oneByOne redoes a batch that failed as a whole, event by event. It costs none of them an attempt: only one is to blame.
func (w *worker) oneByOne(j job, failed error) {
	var f *failure
	inDoubt := errors.As(failed, &f) && f.fault == faultUnknown
	for i, d := range j.ds {
		if i > 0 && j.p.stopped() {
			j.p.working.Done()
			return
		}
		d.inDoubt = inDoubt
		if _, err := w.crew.in.receive(j.ctx, d, w.crew.in.alone(d, 1), nil, true); err != nil {
			j.p.conclude(j, err)
			return
		}
		j.p.settle(d.from.offset)
	}
	j.p.conclude(j, nil)
}

// finish brings a single event to its outcome, first its first trial or, where that was made, what comes after failed.
func (w *worker) finish(j job, first trial, failed error) {
	_, err := w.crew.in.receive(j.ctx, j.ds[0], first, failed, true)
	if err == nil {
		j.p.settle(j.ds[0].from.offset)
	}
	j.p.conclude(j, err)
}
