package inbox

import (
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file holds a partition's events that found no room (ErrFull): backpressure. They wait here and keep their keys, but no
// worker and no connection. The partition begins no other events meanwhile. It tries one of them at a time, and the next one
// immediately after a success.

// setAside takes back a job of one event that found no room. Its key stays in progress. If the partition is released first,
// the job is dropped: the next reader meets its event again.
func (p *partition) setAside(j *job, err error) {
	defer p.working.Done()
	defer p.notifyFull(j.ds[0], err) // The observer finds the partition held.
	j.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.atCapacity
	if j.state == jobHeld {
		r.tries++
	} else {
		j.state = jobHeld
		r.refused++
	}
	r.waiting = append(r.waiting, j)
	if len(r.waiting) == r.refused && r.timer == nil { // None of them is being tried.
		p.tryLater()
	}
}

// gotThrough notes that an event that had found no room is settled.
func (p *partition) gotThrough() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.atCapacity.refused--
	p.atCapacity.tries = 0
	p.tryNext()
}

// tryLater schedules the next try. The caller holds the mutex.
func (p *partition) tryLater() {
	r := &p.atCapacity
	if r.left {
		return
	}
	r.timer = time.AfterFunc(loop.CapacityDelay(r.tries+1, len(r.waiting), p.random()), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		r.timer = nil
		p.tryNext()
	})
}

// tryNext gives the next event to the workers. The caller holds the mutex.
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

// leaveAtCapacity drops the events that wait for room.
func (p *partition) leaveAtCapacity() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.atCapacity.left = true
	if p.atCapacity.timer != nil {
		p.atCapacity.timer.Stop()
	}
}
