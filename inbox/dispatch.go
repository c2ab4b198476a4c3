package inbox

import "time"

// This file hands a partition's events to the workers, in the order that the scheduler sets, and takes in how their jobs went: it implements
// jobOwner (job.go).

// dispatch adds a job of one event. The workers get it when its key is free, or as part of a batch.
func (p *partition) dispatch(j *job) {
	j.read, j.readAt = p.workers.read.Add(1), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if j = p.scheduler.add(j); j != nil {
		p.handOut(j)
	}
}

// offerBatches hands out the open batches: the reader has no more events for now.
func (p *partition) offerBatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.adding = false
	p.handOut(p.scheduler.offers()...)
}

// taken notes that a worker begins the job: a batch collects no more events.
func (p *partition) taken(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.close()
}

// follower gives a worker the next event of a job's key, or up to most of them together. The worker's next transaction takes
// them in. It is nil when none waits.
func (p *partition) follower(j *job, most int) *job {
	if p.stopped() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.scheduler.follower(j, most)
	if next != nil {
		p.working.Add(1)
	}
	return next
}

// drop ends a job that was not begun.
func (p *partition) drop(j *job) {
	j.leave()
	p.working.Done()
}

// putBack returns the follower of a job to its queue, because the job has to be redone.
func (p *partition) putBack(j *job) {
	defer p.working.Done()
	j.follower.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.putBack(j)
}

// split hands out the events of a batch one by one.
func (p *partition) split(batch *job) {
	defer p.working.Done()
	batch.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handOut(p.scheduler.split(batch)...)
}

// conclude ends a job and begins what waits for it. With an err the job's events are not settled, and what waits is never
// begun.
func (p *partition) conclude(j *job, err error) {
	defer p.working.Done()
	j.leave()
	if err == nil {
		err = p.receiver.runner.tooManyHung()
	}
	if err != nil {
		p.failWith(err)
		return
	}
	if j.state == jobHeld {
		p.gotThrough()
	}
	if j.follower == nil {
		p.mu.Lock()
		p.handOut(p.scheduler.done(j)...)
		p.mu.Unlock()
	}
	p.free()
}
