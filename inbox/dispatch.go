package inbox

// This file is how a partition hands its events to the workers, as scheduler says.

// dispatch lines up a job of one event: it is begun now, when its key is free, or with its batch.
func (p *partition) dispatch(j *job) {
	j.read = p.workers.read.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	if j = p.scheduler.add(j); j != nil {
		p.handOut(j)
	}
}

// gathered says that the reader has no more events for now: what is collected is begun.
func (p *partition) gathered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.gathering = false
	p.handOut(p.scheduler.offers()...)
}
