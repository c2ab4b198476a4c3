package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file is how a partition hands its events to the workers: those of different keys beside each other, those of one
// key one after the other.

// job is one transaction's worth of work: an event, or a batch of events of one type.
type job struct {
	p     *partition
	ctx   context.Context // of its handler
	ds    []*delivery
	first trial // what begins it, where that is not to run the handler
	skip  bool

	followed bool // the next event of its key is in the same worker's hand
}

// keys are the keys that the job keeps busy.
func (j job) keys() []string {
	var keys []string
	seen := make(map[string]bool, len(j.ds))
	for _, d := range j.ds {
		if d.e.Key != "" && !seen[d.e.Key] {
			seen[d.e.Key] = true
			keys = append(keys, d.e.Key)
		}
	}
	return keys
}

// dispatch gives a job to the workers, now or when its key is free. A batch waits here until all its keys are. False: the
// partition stops.
func (p *partition) dispatch(ctx context.Context, j job) bool {
	keys := j.keys()
	for {
		p.mu.Lock()
		busy := false
		for _, key := range keys {
			waiting, inHand := p.queues[key]
			if inHand && len(j.ds) == 1 {
				p.queues[key] = append(waiting, j)
				p.mu.Unlock()
				return true
			}
			busy = busy || inHand
		}
		if !busy {
			break
		}
		p.mu.Unlock()
		select {
		case <-p.freed:
		case <-ctx.Done():
			return false
		}
	}
	for _, key := range keys {
		p.queues[key] = nil
	}
	p.mu.Unlock()
	p.working.Add(1)
	p.crew.add(j)
	return true
}

// follower takes what waits behind a job of one key, for the worker that has it: its transaction comes right behind.
func (p *partition) follower(j *job) (job, bool) {
	if len(j.ds) > 1 || j.ds[0].e.Key == "" || p.stopped() {
		return job{}, false
	}
	key := j.ds[0].e.Key
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting := p.queues[key]
	if len(waiting) == 0 {
		return job{}, false
	}
	p.queues[key] = waiting[1:]
	p.working.Add(1)
	j.followed = true
	return waiting[0], true
}

// conclude ends a job whose events are settled, and begins what waits behind it. err is why they are not: then what
// waits is never begun.
func (p *partition) conclude(j job, err error) {
	defer p.working.Done()
	if err == nil {
		err = p.in.tooManyHung()
	}
	if err != nil {
		p.failWith(err)
		return
	}
	if j.followed {
		return
	}
	for _, key := range j.keys() {
		p.mu.Lock()
		waiting := p.queues[key]
		if len(waiting) == 0 {
			delete(p.queues, key)
			p.mu.Unlock()
			continue
		}
		p.queues[key] = waiting[1:]
		p.mu.Unlock()
		p.working.Add(1)
		p.crew.add(waiting[0])
	}
	p.free()
}

func (p *partition) failWith(err error) {
	if errors.Is(err, errFenced) {
		p.fencedOff()
	} else {
		p.fail(err)
	}
}

// stopped says that no more events are to be begun.
func (p *partition) stopped() bool {
	select {
	case <-p.broken:
		return true
	case <-p.reading.Done():
		return true
	default:
		return false
	}
}

// free tells those who wait that something is settled, or a key is free.
func (p *partition) free() {
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// carefully runs one event alone, on this node, after its start was counted: if it ends the process, the count is there.
func (p *partition) carefully(jobs context.Context, d *delivery, first trial) bool {
	p.working.Wait()
	p.in.careful.Lock()
	defer p.in.careful.Unlock()
	starts, known := 0, false
	for wait := 0; ; wait++ {
		var err error
		if starts, known, err = p.in.countStart(jobs, d); err == nil {
			break
		}
		if jobs.Err() == nil {
			p.in.troubled(err)
		}
		if err := pause(jobs, spread(databaseBase, databaseCap, wait+1, p.in.random())); err != nil {
			p.fail(err)
			return false
		}
	}
	d.from.careful = true
	if first == nil {
		first = p.in.alone(d, 1)
	}
	// The end that made us careful may have been its doing, though nobody counted then. With a single attempt that would
	// condemn every event that was in hand: there the first counted start is the first.
	previous := starts
	if p.in.c.Retry.Last(1) {
		previous = starts - 1
	}
	if previous > 0 && p.in.c.Retry.Last(previous) {
		err := fmt.Errorf("the process ended %d times while it was in hand", previous)
		l := letter{reason: "it ended the process", holds: p.in.c.HoldKey, attempts: previous, errors: []string{err.Error()}, err: err, reopen: true}
		first = p.in.within(func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return p.in.bury(ctx, tx, d, l, Dead) })
	}
	_, err := p.in.receive(jobs, d, first, nil, true)
	if err == nil {
		p.settle(d.from.offset)
	}
	p.working.Add(1)
	p.conclude(job{p: p, ctx: jobs, ds: []*delivery{d}}, err)
	if err != nil || p.stopped() {
		return false
	}
	if !known {
		p.carefulLeft--
	}
	if p.carefulLeft <= 0 || d.from.offset+1 >= p.carefulEnd {
		p.careful = false
	}
	return true
}
