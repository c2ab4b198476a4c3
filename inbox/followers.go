package inbox

import "slices"

// This file is how a worker goes on with one key: the events that wait for the one it has come next, without another wait.

// follower takes what waits behind a job of one key, for the worker that has it: the key passes on to it. nil: nothing
// does, or it is for a batch. More than one is taken only where the job's event was stored: they are, too.
func (l *scheduler) follower(j *job, most int) *job {
	if j.kind == jobBatch && len(j.ds) > 1 || j.ds[0].e.Key == "" {
		return nil
	}
	line := l.keys[j.ds[0].e.Key]
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
	l.forget(j)
	return next
}

// putBack has the follower of a job wait again, first of all.
func (l *scheduler) putBack(j *job) {
	line := l.keys[j.ds[0].e.Key]
	line.waiting = slices.Insert(line.waiting, 0, j.follower)
	j.follower = nil
}
