package inbox

import "time"

// This file is what a partition does with events that there is no room for (ErrFull). They wait here, each with what it
// has behind it, and keep nothing but their keys: no worker, no connection. The partition begins no more events meanwhile.
// One of them at a time is tried again; when one gets through, the next is tried at once.

// setAside takes a job of one event from a worker, for which there is no room. Its key stays in progress. When the partition
// is given up it is left as it is: the next reader meets its event again.
func (p *partition) setAside(j *job, err error) {
	defer p.working.Done()
	defer p.notifyFull(j.ds[0], err) // An observer that is called finds the partition held.
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.atCapacity
	if j.state == jobHeld {
		r.tries++
	} else {
		j.state = jobHeld
		r.held++
	}
	r.waiting = append(r.waiting, j)
	if len(r.waiting) == r.held && r.timer == nil { // None is being tried.
		p.tryLater()
	}
}

// gotThrough says that an event for which there was no room is settled.
func (p *partition) gotThrough() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.atCapacity.held--
	p.atCapacity.tries = 0
	p.tryNext()
}

// tryLater has the next one tried after a while. It needs the mutex.
func (p *partition) tryLater() {
	r := &p.atCapacity
	if r.left {
		return
	}
	r.timer = time.AfterFunc(capacityDelay(r.tries+1, len(r.waiting), p.random()), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.timer = nil
		p.tryNext()
	})
}

// tryNext gives the next one to the workers. It needs the mutex.
func (p *partition) tryNext() {
	r := &p.atCapacity
	if r.left || len(r.waiting) == 0 {
		return
	}
	j := r.waiting[0]
	r.waiting[0] = nil
	r.waiting = r.waiting[1:]
	p.working.Add(1)
	p.workers.add(j)
}

// leaveAtCapacity gives up what waits for room.
func (p *partition) leaveAtCapacity() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.atCapacity.left = true
	if p.atCapacity.timer != nil {
		p.atCapacity.timer.Stop()
	}
}
