package inbox

import "slices"

// This file decides which events of a partition may begin: those of different keys in parallel, those of one key one after the
// other. It only decides; dispatch.go hands the jobs out.

// scheduler holds the keys of a partition that are in progress, and what waits for them. It collects events of types that are
// handled in batches: a batch collects until it is full or a worker takes it. An event whose key is in progress stays out of the
// batch. It joins the batch that is open when its key is free.
//
// One goroutine at a time may use it. partition guards it with its mutex.
type scheduler struct {
	most    int // events of a batch
	keys    map[string]*keyQueue
	batches map[string]*job // by type: the last batch
	adding  bool            // the reader is adding more: no open batch is offered yet
}

// keyQueue is a key in progress. It belongs to one job.
type keyQueue struct {
	batch   *job   // the batch that the key joined last; more of its events may join while the batch is open
	waiting []*job // wait for the key's job, in order; each has one event, except one that was put back
}

func newScheduler(most int) scheduler {
	return scheduler{most: most, keys: map[string]*keyQueue{}, batches: map[string]*job{}}
}

// add adds a job of one event. It returns the job to begin now; nil when the event waits, or joined a batch that is not full.
func (s *scheduler) add(j *job) *job {
	key := j.ds[0].e.Key
	if key == "" {
		return s.begin(nil, j)
	}
	line, busy := s.keys[key]
	switch {
	case !busy:
		line = &keyQueue{}
		s.keys[key] = line
	case len(line.waiting) > 0 || !s.mayJoin(line, j):
		line.waiting = append(line.waiting, j)
		return nil
	}
	return s.begin(line, j)
}

// mayJoin reports that the event may join the batch of the event before it.
func (s *scheduler) mayJoin(line *keyQueue, j *job) bool {
	return j.kind == jobBatch && line.batch != nil && line.batch.collects() && line.batch == s.batches[j.ds[0].e.Type]
}

// begin takes an event whose turn it is. line is nil for an event without a key.
func (s *scheduler) begin(line *keyQueue, j *job) *job {
	if j.kind != jobBatch {
		return j
	}
	eventType := j.ds[0].e.Type
	batch := s.batches[eventType]
	if batch == nil || !batch.collects() {
		batch, s.batches[eventType] = j, j
	} else {
		batch.ds = append(batch.ds, j.ds[0])
	}
	if line != nil {
		line.batch = batch
	}
	if len(batch.ds) < s.most {
		return nil
	}
	offered := batch.state == jobOffered
	batch.close()
	if offered {
		return nil
	}
	return batch
}

// offers returns the batches that begin as they are. They may grow until a worker takes them.
func (s *scheduler) offers() []*job {
	if s.adding {
		return nil
	}
	var js []*job
	for _, j := range s.batches {
		if j.state == jobOpen {
			j.state = jobOffered
			js = append(js, j)
		}
	}
	return js
}

// done frees the keys of a job. It returns the jobs to begin now.
func (s *scheduler) done(j *job) []*job {
	s.forget(j)
	var js []*job
	for _, key := range j.keys() {
		line := s.keys[key]
		line.batch = nil
		if len(line.waiting) == 0 {
			delete(s.keys, key)
			continue
		}
		for more := true; more; more = len(line.waiting) > 0 && s.mayJoin(line, line.waiting[0]) {
			if next := s.begin(line, line.pop()); next != nil {
				js = append(js, next)
			}
		}
	}
	return append(js, s.offers()...)
}

// split takes a job of several events apart. Each event comes alone, those of one key one after the other and before what waits for
// the batch. It returns the jobs to begin now.
func (s *scheduler) split(batch *job) []*job {
	s.forget(batch)
	var js []*job
	later := map[string][]*job{}
	for i, d := range batch.ds {
		j := &job{
			owner: batch.owner,
			ctx:   batch.ctx,
			stop:  batch.stop,
			ds:    batch.ds[i : i+1 : i+1],
			first: d.e.Type,
			read:  batch.read,
			kind:  jobApart,
		}
		key := d.e.Key
		rest, second := later[key]
		if key == "" || !second {
			js = append(js, j)
			later[key] = nil
		} else {
			later[key] = append(rest, j)
		}
	}
	for key, waiting := range later {
		if key != "" {
			line := s.keys[key]
			line.batch, line.waiting = nil, append(waiting, line.waiting...)
		}
	}
	return js
}

// forget drops a batch that has ended, with its events.
func (s *scheduler) forget(j *job) {
	if eventType := j.ds[0].e.Type; s.batches[eventType] == j {
		delete(s.batches, eventType)
	}
}

// pop removes the first waiting job.
func (k *keyQueue) pop() *job {
	j := k.waiting[0]
	k.waiting[0] = nil
	k.waiting = k.waiting[1:]
	return j
}

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
