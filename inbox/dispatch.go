package inbox

// This file is how a partition hands its events to the workers, as scheduler says.

// dispatch lines up a job of one event: it is begun now, when its key is free, or with its batch.
func (p *partition) dispatch(j *job) {
	j.read = p.workers.number()
	p.mu.Lock()
	defer p.mu.Unlock()
	if j = p.scheduler.add(j); j != nil {
		p.handOut(j)
	}
}

// handOut gives jobs to the workers. It needs the mutex, and either the reader's goroutine or a job in progress.
func (p *partition) handOut(js ...*job) {
	p.working.Add(len(js))
	for _, j := range js {
		p.workers.add(j)
	}
}

// gathered says that the reader has no more events for now: what is collected is begun.
func (p *partition) gathered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.gathering = false
	p.handOut(p.scheduler.offers()...)
}

// taken says that a worker begins the job: a batch takes no more events.
func (p *partition) taken(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.close(j)
}

// follower takes what waits behind a job of one key, for the worker that has it: its transaction comes right behind. It is up to
// most events.
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

// drop says that a job is not begun.
func (p *partition) drop(*job) { p.working.Done() }

// putBack has the follower of a job wait again: what it follows has to be redone.
func (p *partition) putBack(j *job) {
	defer p.working.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.putBack(j)
}

// split has the events of a batch come one by one.
func (p *partition) split(batch *job) {
	defer p.working.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handOut(p.scheduler.split(batch)...)
}

// conclude ends a job whose events are settled, and begins what waits behind it. err is why they are not: then what
// waits is never begun.
func (p *partition) conclude(j *job, err error) {
	defer p.working.Done()
	if err == nil {
		err = p.receiver.runner.tooManyHung()
	}
	if err != nil {
		p.failWith(err)
		return
	}
	if j.atCapacity {
		p.gotThrough()
	}
	if j.follower == nil {
		p.mu.Lock()
		p.handOut(p.scheduler.done(j)...)
		p.mu.Unlock()
	}
	p.free()
}
