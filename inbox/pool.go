package inbox

import (
	"container/heap"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/group"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// workerPool is the workers of a node, which do the jobs of all its partitions. Workers alternate: one job in the order in which events
// were read, so that a busy key gets on and does not wait for all other keys with each of its events; then one in the order in which jobs
// became ready, so that a few slow keys, one for each worker, do not hold up all that was read later.
// A worker keeps a pipeline: its next transaction begins in the round trip that commits the last one.
type workerPool struct {
	receiver *receiver
	timings  group.Timings
	wg       sync.WaitGroup
	read     atomic.Int64 // numbers the events that were read

	mu      sync.Mutex
	more    *sync.Cond
	waiting int // jobs that are ready
	first   readFirst
	queue   []*ready // in the order in which they became ready
	byRead  bool     // the last job was taken from first
	ended   bool
}

// ready is a job that no worker has taken. A job taken in one order stays in the other for a while.
type ready struct {
	*job
	taken bool
}

// readFirst is a heap of jobs in the order in which they were read.
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

func newWorkerPool(rec *receiver) *workerPool {
	c := &workerPool{receiver: rec}
	c.more = sync.NewCond(&c.mu)
	return c
}

func (wp *workerPool) end() {
	wp.mu.Lock()
	wp.ended = true
	wp.mu.Unlock()
	wp.more.Broadcast()
	wp.wg.Wait()
}

// add never waits: a partition has at most readahead.MaxAhead events in progress. A job of a partition that has stopped is dropped at once.
func (wp *workerPool) add(j *job) {
	wp.mu.Lock()
	if j.owner.stopped() {
		wp.mu.Unlock()
		j.owner.drop(j)
		return
	}
	r := &ready{job: j}
	heap.Push(&wp.first, r)
	wp.queue = append(wp.queue, r)
	wp.waiting++
	wp.mu.Unlock()
	wp.more.Signal()
}

// drop drops the jobs of an owner that has stopped. They do not wait for workers that are busy with other partitions.
func (wp *workerPool) drop(owner jobOwner) {
	wp.mu.Lock()
	var dropped []*job
	for _, r := range wp.queue {
		if !r.taken && r.owner == owner {
			r.taken = true
			dropped = append(dropped, r.job)
		}
	}
	if wp.waiting -= len(dropped); wp.waiting == 0 {
		wp.first, wp.queue = nil, nil
	}
	wp.mu.Unlock()
	for _, j := range dropped {
		owner.drop(j)
	}
}

// take returns the next job. It is nil when none is ready, or, if take may wait, when the pool has ended.
func (wp *workerPool) take(wait bool) *job {
	wp.mu.Lock()
	defer wp.mu.Unlock()
	for {
		for wp.waiting == 0 {
			if !wait || wp.ended {
				return nil
			}
			wp.more.Wait()
		}
		if j := wp.pop(nil); wp.begins(j) {
			return j
		}
	}
}

// begins reports that a job has the turn that it needs, or has to be dropped. Otherwise it comes again when its turn has come, without
// a worker until then.
func (wp *workerPool) begins(j *job) bool {
	t := wp.receiver.turnsOf(j.first)
	if t == nil || j.turn != nil || !j.runsHandler() || j.owner.stopped() {
		return true
	}
	mine := t.Join()
	select {
	case <-mine:
		j.turn = t
		return true
	default:
	}
	go func() { // It ends before the partition does, which waits for its jobs.
		if t.Wait(mine, j.stop) {
			j.turn = t
		}
		wp.add(j)
	}()
	return false
}

// follows is begins for a job that follows another of its key. It does not wait for a turn.
func (wp *workerPool) follows(j *job) bool {
	t := wp.receiver.turnsOf(j.first)
	if t == nil || !j.runsHandler() {
		return true
	}
	if !t.Try() {
		return false
	}
	j.turn = t
	return true
}

// takeIf returns the next job if it is ready and wanted; otherwise nil.
func (wp *workerPool) takeIf(wanted func(*job) bool) *job {
	wp.mu.Lock()
	defer wp.mu.Unlock()
	if wp.waiting == 0 {
		return nil
	}
	return wp.pop(wanted)
}

// pop takes the next job, or returns nil if that is not wanted. One is ready. The caller holds the mutex.
func (wp *workerPool) pop(wanted func(*job) bool) *job {
	wp.byRead = !wp.byRead
	for {
		var r *ready
		if wp.byRead {
			r = wp.first[0]
		} else {
			r = wp.queue[0]
		}
		if !r.taken && wanted != nil && !wanted(r.job) {
			wp.byRead = !wp.byRead
			return nil
		}
		if wp.byRead {
			heap.Pop(&wp.first)
		} else {
			wp.queue[0], wp.queue = nil, wp.queue[1:]
		}
		if r.taken {
			continue
		}
		r.taken = true
		if wp.waiting--; wp.waiting == 0 { // What is left in both orders was taken.
			wp.first, wp.queue = nil, nil
		}
		return r.job
	}
}

// ready is how many jobs wait for a worker.
func (wp *workerPool) ready() int {
	wp.mu.Lock()
	defer wp.mu.Unlock()
	return wp.waiting
}

// worker does one job after the other.
type worker struct {
	workers  *workerPool
	pipeline pipeline
	last     *tried // lacks only its COMMIT

	since    time.Time // when it took a job from the pool
	followed int       // transactions of that job's key since then
}

// tried is a job whose handler has run, or a group of such jobs.
type tried struct {
	job   *job // the first of a group
	out   Outcome
	begun time.Time
	group []*job
}

func (w *worker) run() {
	for j := w.next(); j != nil; j = w.next() {
		w.work(j)
	}
}

// next is the next job: a follower of the last one, unless others have waited long enough, or else one from the pool. While
// there is none, the worker leaves nothing uncommitted.
func (w *worker) next() *job {
	if w.last != nil {
		if w.last.group == nil && (!w.long() || w.workers.ready() == 0) {
			if j := w.last.job.owner.follower(w.last.job, w.workers.receiver.queues.followers(w.last.out)); j != nil {
				if w.workers.follows(j) {
					w.followed++
					return j
				}
				w.last.job.owner.putBack(w.last.job)
			}
		}
		if !w.pipeline.long() {
			if j := w.take(false); j != nil {
				return j
			}
		}
		w.commit(nil)
	}
	return w.take(true)
}

// take takes a job from the pool.
func (w *worker) take(wait bool) *job {
	j := w.workers.take(wait)
	w.since, w.followed = time.Now(), 0
	return j
}

// long reports that the worker has been with one key for long. The pipeline cannot tell: it starts anew with each group of
// followers. A stored event has at least one such group: on a slow server all would be stored one by one otherwise.
func (w *worker) long() bool {
	if w.last.out == Stored && w.followed == 0 {
		return false
	}
	return w.followed >= maxTransactions || time.Since(w.since) > maxPipeline
}

// work does a job up to its COMMIT. If anything goes wrong, it does the job to its end.
func (w *worker) work(j *job) {
	for {
		if j.owner.stopped() {
			j.owner.drop(j)
			return
		}
		if j.kind == jobBatch {
			j.owner.taken(j)
		}
		if w.stores(j) {
			if len(j.ds) > 1 {
				if w.commit(j) {
					j.owner.split(j)
				}
				return
			}
			j.intake = w.workers.receiver.newIntake(j.ds[0], w.workers.receiver.storing(j.ds[0]), j.stop)
		}
		if j.intake != nil {
			switch {
			case !w.commit(j):
			case j.owner.stopped(): // The partition was stopped while the last job was committed.
				j.owner.drop(j)
			default:
				w.finish(j, nil)
			}
			return
		}
		// Followers may wait for the lock of their key. The job before must not wait with them.
		if (j.kind == jobFollowers || w.pipeline.long()) && !w.commit(j) {
			return
		}
		if j.kind == jobFollowers {
			if w.workers.receiver.queues.quota.enter(j.ds...) != nil {
				w.redo(j, errOneByOne)
				return
			}
		}
		if w.last == nil || w.last.job.follower != j {
			if js := w.groupWith(j); len(js) > 1 {
				w.workGroup(js)
				return
			}
		}
		begun := time.Now()
		o, committed, err := w.pipeline.open(j.ctx, attempt{
			ds:        j.ds,
			number:    1,
			followers: j.kind == jobFollowers,
		})
		if !w.committed(committed, j) {
			return
		}
		if errors.Is(err, errNotOpened) {
			continue
		}
		var out Outcome
		if err == nil {
			ran := time.Now()
			out, err = w.pipeline.run(j.ctx, o)
			w.noteAlone(j, out, time.Since(ran))
		}
		if err != nil {
			w.redo(j, err)
			return
		}
		w.last = &tried{job: j, out: out, begun: begun}
		return
	}
}

// stores reports that the job's events are to be stored without their handler, which needs something that is away.
func (w *worker) stores(j *job) bool {
	return j.kind != jobFollowers && j.intake == nil && j.ds[0].h != nil && w.workers.receiver.dependencies.waits(j.ds[0].e.Type)
}

// commit commits the last job, if there is one. It returns false when next must not begin.
func (w *worker) commit(next *job) bool {
	if w.last == nil {
		return true
	}
	return w.committed(w.pipeline.commit(w.last.job.ctx), next)
}

// committed takes in the answer to the last job's COMMIT. It returns false when next follows a job that failed: next waits again,
// maybe for longer than this worker does.
func (w *worker) committed(err error, next *job) bool {
	last := w.last
	if last == nil {
		return true
	}
	w.last = nil
	if last.group != nil {
		w.committedGroup(last.group, err)
		return true
	}
	j := last.job
	if err == nil {
		failpoint.Hit(failpoint.InboxCommitted)
		for _, d := range j.ds {
			w.workers.receiver.report(d, last.out, time.Since(last.begun))
		}
		j.owner.settle(j.ds...)
		j.owner.conclude(j, nil)
		return true
	}
	waits := j.follower != nil && j.follower == next
	if waits {
		j.owner.putBack(j)
	}
	w.redo(j, err)
	return !waits
}

// redo continues with a job that failed. The events of a job of several are tried one by one. The failure spends no attempt of
// theirs: only one of them, or none, is to blame.
func (w *worker) redo(j *job, failed error) {
	var f *failure.Error
	inDoubt := errors.As(failed, &f) && f.Fault == failure.FaultUnknown
	if !inDoubt { // else they may be stored
		w.workers.receiver.queues.quota.leave(j.ds...)
	}
	if len(j.ds) == 1 {
		w.finish(j, failed)
		return
	}
	if f != nil { // The others of a batch need not find out, too.
		w.workers.receiver.dependencies.blamed(j.ctx, f, events(j.ds), failure.History{})
	}
	for _, d := range j.ds {
		d.inDoubt = d.inDoubt || inDoubt
	}
	j.owner.split(j)
}

// finish brings a single event to its outcome, or leaves it waiting for room. failed is the error of its first attempt, if that
// was made.
func (w *worker) finish(j *job, failed error) {
	if j.intake == nil {
		j.intake = w.workers.receiver.newIntake(j.ds[0], nil, j.stop)
	}
	_, err := w.workers.receiver.receive(j.ctx, j.intake, failed)
	if errors.Is(err, ErrFull) {
		j.owner.setAside(j, err)
		return
	}
	if err == nil {
		j.owner.settle(j.ds...)
	}
	j.owner.conclude(j, err)
}

// start starts the workers. end waits until every job is done.
func (wp *workerPool) start() {
	for range wp.receiver.c.Workers {
		w := &worker{workers: wp, pipeline: pipeline{admission: wp.receiver.admission}}
		wp.wg.Go(w.run)
	}
}
