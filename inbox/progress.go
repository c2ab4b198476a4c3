package inbox

// This file is what workers tell a partition about their jobs. It is the jobOwner of job.go.

// taken says that a worker begins the job: a batch takes no more events.
func (p *partition) taken(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.close()
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
