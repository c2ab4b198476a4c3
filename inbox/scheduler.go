package inbox

// This file decides which of a partition's events may be begun: those of different keys beside each other, those of one
// key one after the other. It does nothing: partition has the workers do what it says.

// scheduler is what of a partition is in progress, by key, and what waits behind it. Events of a type that is handled in batches
// are collected: a batch takes more until it is full or a worker takes it. An event whose key is in progress is left out of the
// batch, and goes into the one that is open when its key is free.
//
// It is a plain value of one goroutine at a time; partition guards it with its mutex.
type scheduler struct {
	most      int // events of a batch
	keys      map[string]*keyQueue
	batches   map[string]*job // by type: the last batch of it
	gathering bool            // more is about to be added, so that no open batch is offered yet
}

// keyQueue is a key in progress: of one job.
type keyQueue struct {
	batch   *job   // the batch that the key went into last; its events may follow there while that is open
	waiting []*job // behind the job, in their order: of one event each, but for one that was put back
}

func newScheduler(most int) scheduler {
	return scheduler{most: most, keys: map[string]*keyQueue{}, batches: map[string]*job{}}
}

// add lines up a job of one event. What it returns is to be begun now; nil where the event waits, or is in a batch that
// is not full.
func (l *scheduler) add(j *job) *job {
	key := j.ds[0].e.Key
	if key == "" {
		return l.begin(nil, j)
	}
	line, inHand := l.keys[key]
	switch {
	case !inHand:
		line = &keyQueue{}
		l.keys[key] = line
	case len(line.waiting) > 0 || !l.mayJoin(line, j):
		line.waiting = append(line.waiting, j)
		return nil
	}
	return l.begin(line, j)
}

// mayJoin says that the event may go into the batch that the one before it is in.
func (l *scheduler) mayJoin(line *keyQueue, j *job) bool {
	return j.kind == jobBatch && line.batch != nil && line.batch.collects() && line.batch == l.batches[j.ds[0].e.Type]
}

// begin takes an event on, whose turn it is. line is nil for one without a key.
func (l *scheduler) begin(line *keyQueue, j *job) *job {
	if j.kind != jobBatch {
		return j
	}
	eventType := j.ds[0].e.Type
	batch := l.batches[eventType]
	if batch == nil || !batch.collects() {
		batch, l.batches[eventType] = j, j
	} else {
		batch.ds = append(batch.ds, j.ds[0])
	}
	if line != nil {
		line.batch = batch
	}
	if len(batch.ds) < l.most {
		return nil
	}
	offered := batch.state == jobOffered
	batch.close()
	if offered {
		return nil
	}
	return batch
}

// offers are the batches that are begun as they are, unless they grow before a worker takes them.
func (l *scheduler) offers() []*job {
	if l.gathering {
		return nil
	}
	var js []*job
	for _, j := range l.batches {
		if j.state == jobOpen {
			j.state = jobOffered
			js = append(js, j)
		}
	}
	return js
}

// done frees the keys of a job. What it returns is to be begun now.
func (l *scheduler) done(j *job) []*job {
	l.forget(j)
	var js []*job
	for _, key := range j.keys() {
		line := l.keys[key]
		line.batch = nil
		if len(line.waiting) == 0 {
			delete(l.keys, key)
			continue
		}
		for more := true; more; more = len(line.waiting) > 0 && l.mayJoin(line, line.waiting[0]) {
			if next := l.begin(line, line.pop()); next != nil {
				js = append(js, next)
			}
		}
	}
	return append(js, l.offers()...)
}

// split takes a job of several events apart: each of its events comes alone, those of one key one after the other, before what waits
// behind the batch. What it returns is to be begun now.
func (l *scheduler) split(batch *job) []*job {
	l.forget(batch)
	var js []*job
	later := map[string][]*job{}
	for i, d := range batch.ds {
		j := &job{owner: batch.owner, ctx: batch.ctx, stop: batch.stop, ds: batch.ds[i : i+1 : i+1], read: batch.read, kind: jobApart}
		key := d.e.Key
		behind, second := later[key]
		if key == "" || !second {
			js = append(js, j)
			later[key] = nil
		} else {
			later[key] = append(behind, j)
		}
	}
	for key, waiting := range later {
		if key != "" {
			line := l.keys[key]
			line.batch, line.waiting = nil, append(waiting, line.waiting...)
		}
	}
	return js
}

// forget lets go of a job that has ended, and of its events.
func (l *scheduler) forget(j *job) {
	if eventType := j.ds[0].e.Type; l.batches[eventType] == j {
		delete(l.batches, eventType)
	}
}

// pop takes the first that waits.
func (line *keyQueue) pop() *job {
	j := line.waiting[0]
	line.waiting[0] = nil
	line.waiting = line.waiting[1:]
	return j
}
