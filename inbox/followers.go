package inbox

import "slices"

// This file lets a worker go on with the key that it has: events that wait for its job become its next transaction.

// follower takes what waits for a job of one key, for the worker that has the job. The key passes on to it. It is nil when
// nothing waits, or what waits belongs to a batch. More than one event is taken only when the job's event was stored: then
// they are stored too.
func (s *scheduler) follower(j *job, most int) *job {
	if j.kind == jobBatch && len(j.ds) > 1 || j.ds[0].e.Key == "" {
		return nil
	}
	line := s.keys[j.ds[0].e.Key]
	if len(line.waiting) == 0 || line.waiting[0].kind == jobBatch {
		return nil
	}
	next := line.pop()
	for bytes := next.bytes(); next.joins() && len(line.waiting) > 0 && line.waiting[0].joins(); {
		bytes += line.waiting[0].bytes()
		if bytes > maxFollowerBytes || len(next.ds)+len(line.waiting[0].ds) > most {
			break
		}
		next.ds, next.kind = append(next.ds, line.pop().ds...), jobFollowers
	}
	j.follower = next
	s.forget(j)
	return next
}

// putBack returns the follower of a job to the front of its queue.
func (s *scheduler) putBack(j *job) {
	line := s.keys[j.ds[0].e.Key]
	line.waiting = slices.Insert(line.waiting, 0, j.follower)
	j.follower = nil
}
