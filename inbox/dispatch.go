package inbox

import "time"

// This file hands a partition's events to the workers, in the order that the scheduler sets.

// dispatch adds a job of one event. The workers get it when its key is free, or as part of a batch.
func (p *partition) dispatch(j *job) {
	j.read, j.readAt = p.workers.read.Add(1), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if j = p.scheduler.add(j); j != nil {
		p.handOut(j)
	}
}

// gathered hands out the open batches: the reader has no more events for now.
func (p *partition) gathered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.gathering = false
	p.handOut(p.scheduler.offers()...)
}
