package inbox

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

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
			if j := w.last.job.owner.follower(w.last.job, w.crew.receiver.queues.followers(w.last.out)); j != nil {
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
	if j.owner.stopped() {
		j.owner.drop(j)
		return
	}
	j.owner.taken(j)
	if j.intake != nil {
		w.commit()
		switch {
		case w.hand == nil: // It waits behind what was to be committed.
		case j.owner.stopped(): // That was decided before what came first had ended.
			j.owner.drop(j)
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
		j.owner.settle(j.ds...)
		j.owner.conclude(j, nil)
		return
	}
	if j.follower != nil && j.follower == w.hand { // It may have to wait for longer than this worker does.
		j.owner.putBack(j)
		w.hand = nil
	}
	w.redo(j, err)
}

// redo goes on with a job that failed when it was made the easy way. A job of several events is taken apart, and costs none of
// them an attempt: only one is to blame, or none.
func (w *worker) redo(j *job, failed error) {
	if len(j.ds) == 1 {
		j.intake = j.owner.intake(j.ds[0], nil)
		w.finish(j, failed)
		return
	}
	var f *failure
	inDoubt := errors.As(failed, &f) && f.fault == faultUnknown
	for _, d := range j.ds {
		d.inDoubt = d.inDoubt || inDoubt
	}
	j.owner.split(j)
}

// finish brings a single event to its outcome, or to where it has to wait for room. failed is why its first trial did not
// commit, where that was made.
func (w *worker) finish(j *job, failed error) {
	_, err := w.crew.receiver.receive(j.ctx, j.intake, failed)
	if errors.Is(err, ErrFull) {
		j.owner.setAside(j, err)
		return
	}
	if err == nil {
		j.owner.settle(j.ds...)
	}
	j.owner.conclude(j, err)
}

// start starts the workers; end lets them go once every job is done.
func (c *crew) start() {
	for range c.receiver.c.Workers {
		w := &worker{crew: c, chain: chain{receiver: c.receiver}}
		c.wg.Go(w.run)
	}
}
