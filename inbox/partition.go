package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
)

const (
	// maxAhead is how many events may lie between the lowest unsettled one of a partition and the last begun. After an
	// unclean end, that many may have been in hand.
	maxAhead = 1024

	// maxBytesAhead is how many bytes of payload a partition may have in hand before it waits to fetch more.
	maxBytesAhead = 16 << 20
)

// partition reads one partition for as long as it is ours.
type partition struct {
	in        *Inbox
	gen       generation
	tp        topicPartition
	committed int64
	o         consumeOptions
	fence     *fence // nil until it is ours

	mu     sync.Mutex
	track  *tracker
	queues map[string][]job // of keys that are being worked: what waits behind the event in hand
	saved  int64            // Invariant: saved <= track.low(), as far as Postgres knows.
	known  int64            // what the group's committed offset is
	failed error            // why no more events are begun

	working sync.WaitGroup
	freed   chan struct{} // something was settled
	broken  chan struct{} // closed when failed is set

	// After an unclean end events are run one by one, each start counted first, until carefulLeft new ones were met, or
	// the end that the log had then.
	careful     bool
	carefulLeft int
	carefulEnd  int64
}

// job is a delivery and the step that begins it.
type job struct {
	d     *delivery
	first step
}

func newPartition(in *Inbox, gen generation, tp topicPartition, committed int64, o consumeOptions) *partition {
	return &partition{in: in, gen: gen, tp: tp, committed: committed, o: o, queues: map[string][]job{},
		freed: make(chan struct{}, 1), broken: make(chan struct{})}
}

// run reads the partition until ctx ends, and returns when nothing of it is in hand any more. jobs is the context of
// handlers, which lasts a while longer.
func (p *partition) run(ctx, jobs context.Context) error {
	if err := p.assign(ctx); err != nil {
		if ctx.Err() != nil && !fatal(err) {
			return nil
		}
		return err
	}
	err := p.read(ctx, jobs)
	p.working.Wait()
	if err == nil {
		p.mu.Lock()
		err = p.failed
		p.mu.Unlock()
	}
	if err != nil && ctx.Err() != nil && !fatal(err) && !errors.Is(err, errFenced) {
		return nil // Told to stop.
	}
	return err
}

// assign makes the partition ours in Postgres.
func (p *partition) assign(ctx context.Context) error {
	for wait := 0; ; wait++ {
		first, end, err := p.gen.bounds(ctx, p.tp)
		if err != nil && ctx.Err() == nil {
			p.in.kafkaTroubled("asking for the log's bounds", err)
		}
		if err == nil {
			var a assignment
			a, err = p.in.assign(ctx, p.tp.topic, p.tp.partition, func(position int64) (reading, error) {
				return startAt(position, p.committed, first, end, p.o.adopt, p.o.skipDeleted)
			})
			if err == nil {
				p.mu.Lock()
				p.fence, p.track = a.fence, newTracker(a.reading.start)
				p.saved, p.known = a.reading.start, p.committed
				p.careful, p.carefulLeft, p.carefulEnd = a.careful, maxAhead, end
				p.mu.Unlock()
				p.in.c.Logger.Info("partition assigned", "consumer", p.in.c.Consumer, "topic", p.tp.topic, "partition", p.tp.partition,
					"epoch", a.fence.Epoch, "start", a.reading.start, "position", a.reading.position, "committed", p.committed, "careful", a.careful)
				if p.in.c.Observer.OnAssigned != nil {
					p.in.c.Observer.OnAssigned(a.fence.Partition, a.reading.start)
				}
				return nil
			}
			if fatal(err) {
				return err
			}
			if ctx.Err() == nil {
				p.in.troubled(err)
			}
		}
		if perr := pause(ctx, spread(databaseBase, databaseCap, wait+1, p.in.random())); perr != nil {
			return perr
		}
	}
}

// read fetches and begins events, until ctx ends or one of them stops the partition.
func (p *partition) read(ctx, jobs context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.broken:
			cancel()
		case <-ctx.Done():
		}
	}()
	offset := p.track.next
	for wait := 0; ; {
		if !p.room(ctx) {
			return nil
		}
		pg, err := p.gen.fetch(ctx, p.tp, offset)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrOffsetOutOfRange):
			return fmt.Errorf("read %s/%d at offset %d: %w: records were deleted before they were handled, or the topic was recreated; "+
				"see what the log holds, and start again", p.tp.topic, p.tp.partition, offset, err)
		case err != nil:
			p.in.kafkaTroubled("fetching", err)
			wait++
			if pause(ctx, spread(databaseBase, databaseCap, wait, p.in.random())) != nil {
				return nil
			}
			continue
		}
		wait = 0
		if !p.begin(ctx, jobs, pg) {
			return nil
		}
		offset = pg.next
	}
}

// room waits until there is little enough in hand to take more. False: ctx ended.
func (p *partition) room(ctx context.Context) bool {
	for {
		p.mu.Lock()
		full := p.track.spread() >= maxAhead || p.track.bytes >= maxBytesAhead
		p.mu.Unlock()
		if !full {
			return ctx.Err() == nil
		}
		select {
		case <-p.freed:
		case <-ctx.Done():
			return false
		}
	}
}

// begin takes a page in hand, event by event, and says whether to go on.
func (p *partition) begin(ctx, jobs context.Context, pg page) bool {
	ds := make([]*delivery, len(pg.records))
	firsts := make([]step, len(pg.records))
	for i, r := range pg.records {
		ds[i], firsts[i] = p.delivery(r)
	}
	// The page was fetched before this is asked: whoever produced an event of a new type after a node declared it is
	// understood.
	declared := map[string]bool{}
	if types := p.in.unknownTypes(ds); len(types) > 0 {
		for wait := 0; ; wait++ {
			var err error
			if declared, err = p.in.declared(ctx, p.in.pool, types); err == nil {
				break
			}
			if ctx.Err() == nil {
				p.in.troubled(err)
			}
			if pause(ctx, spread(databaseBase, databaseCap, wait+1, p.in.random())) != nil {
				return false
			}
		}
	}
	for i, d := range ds {
		first := firsts[i]
		if first == nil && d.h == nil {
			first = p.in.unknown(d, declared[d.e.Type])
		} else if first == nil {
			first = p.in.takeStep(d, 1)
		}
		if !p.room(ctx) {
			return false
		}
		p.mu.Lock()
		p.track.begin(d.from.offset, len(d.e.Payload))
		p.mu.Unlock()
		switch {
		case first == nil:
			p.in.report(d, Skipped, 0)
			p.settle(d.from.offset)
		case p.careful:
			if !p.carefully(jobs, d, first) {
				return false
			}
		default:
			p.dispatch(jobs, job{d, first})
		}
	}
	p.mu.Lock()
	p.track.skipTo(pg.next)
	p.mu.Unlock()
	return true
}

// delivery reads a record. A record that is no event of ours to store becomes a letter: the step is not nil then.
func (p *partition) delivery(r record) (*delivery, step) {
	e, err := wire.Parse(p.tp.topic, r.key, r.value, r.headers, r.at)
	if e.ID == "" {
		e.ID = kafkaID(p.tp.topic, p.tp.partition, r.offset)
	}
	typed := e
	if typed.Type == "" { // Others' records may have none: a type that nobody handles.
		typed.Type = "none"
	}
	if err == nil {
		err = checkEvent(typed)
	}
	if err == nil {
		d := p.in.newDelivery(e)
		d.from = &origin{fence: p.fence, offset: r.offset}
		return d, nil
	}
	if len(e.ID) > 255 || checkText("id", e.ID, 1, 255) != nil {
		e.ID = kafkaID(p.tp.topic, p.tp.partition, r.offset)
	}
	e.Topic, e.Payload, e.Time = p.tp.topic, r.value, r.at
	d := p.in.newDelivery(sanitized(e))
	d.h = p.in.handlers[e.Type]
	d.from = &origin{fence: p.fence, offset: r.offset}
	l := letter{reason: "invalid record: " + boundedError(err), errors: []string{boundedError(err)}, err: err, reopen: true}
	return d, func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return p.in.bury(ctx, tx, d, l, Dead) }
}

// sanitized is an event that the tables can hold.
func sanitized(e holdfast.Event) holdfast.Event {
	clean := func(s string, longest int) string {
		if len(s) > longest {
			s = s[:longest-3]
		}
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
		return s
	}
	headers := make(map[string]string, len(e.Headers))
	for name, value := range e.Headers {
		headers[clean(name, 1<<10)] = clean(value, 64<<10)
	}
	e.Source, e.Type, e.Key, e.Headers = clean(e.Source, 255), clean(e.Type, 255), clean(e.Key, 1024), headers
	return e
}

// dispatch runs an event beside those of other keys, and behind those of its own.
func (p *partition) dispatch(jobs context.Context, j job) {
	key := j.d.e.Key
	if key != "" {
		p.mu.Lock()
		waiting, busy := p.queues[key]
		if busy {
			p.queues[key] = append(waiting, j)
			p.mu.Unlock()
			return
		}
		p.queues[key] = nil
		p.mu.Unlock()
	}
	p.working.Go(func() {
		for {
			if !p.handle(jobs, j) || key == "" {
				return // What waits behind an event that is not settled is not begun either: it comes again with it.
			}
			p.mu.Lock()
			waiting := p.queues[key]
			if len(waiting) == 0 {
				delete(p.queues, key)
				p.mu.Unlock()
				return
			}
			j, p.queues[key] = waiting[0], waiting[1:]
			p.mu.Unlock()
		}
	})
}

// handle brings one event to an outcome and settles its offset. False: it has none, and the partition stops.
func (p *partition) handle(jobs context.Context, j job) bool {
	select {
	case p.in.slots <- struct{}{}:
	case <-jobs.Done():
		p.fail(jobs.Err())
		return false
	}
	defer func() { <-p.in.slots }()
	_, err := p.in.receive(jobs, j.d, j.first, true)
	switch {
	case errors.Is(err, errFenced):
		p.fencedOff()
		return false
	case err != nil:
		p.fail(err)
		return false
	}
	p.settle(j.d.from.offset)
	if err := p.in.tooManyHung(); err != nil {
		p.fail(err)
		return false
	}
	return true
}

// carefully runs one event alone, on this node, after its start was counted: if it ends the process, the count is there.
func (p *partition) carefully(jobs context.Context, d *delivery, first step) bool {
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
	if previous := starts - 1; previous > 0 && p.in.c.Retry.Last(previous) {
		err := fmt.Errorf("the process ended %d times while its handler ran", previous)
		l := letter{reason: "it ended the process", holds: p.in.c.HoldKey, attempts: previous, errors: []string{err.Error()}, err: err, reopen: true}
		first = func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return p.in.bury(ctx, tx, d, l, Dead) }
	}
	if !p.handle(jobs, job{d, first}) {
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

// settle says that what became of an event is durable.
func (p *partition) settle(offset int64) {
	p.mu.Lock()
	p.track.settle(offset)
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// fail stops the partition: no more events are begun.
func (p *partition) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
		close(p.broken)
	} else if fatal(err) && !fatal(p.failed) {
		p.failed = err
	}
}

func (p *partition) fencedOff() {
	p.mu.Lock()
	first := p.failed == nil
	p.mu.Unlock()
	p.fail(errFenced)
	if !first {
		return
	}
	p.in.c.Logger.Warn("another node has the partition", "consumer", p.in.c.Consumer, "topic", p.tp.topic, "partition", p.tp.partition, "epoch", p.fence.Epoch)
	if p.in.c.Observer.OnFenced != nil {
		p.in.c.Observer.OnFenced(p.fence.Partition)
	}
}

// unsaved is the position, when it has moved since it was saved.
func (p *partition) unsaved() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.track == nil || errors.Is(p.failed, errFenced) {
		return 0, false
	}
	low := p.track.low()
	return low, low > p.saved
}

func (p *partition) savedAt(position int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saved = max(p.saved, position)
}

// uncommitted is the saved position, when the group does not know it yet.
func (p *partition) uncommitted() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.track == nil || errors.Is(p.failed, errFenced) {
		return 0, false
	}
	return p.saved, p.saved != p.known
}

func (p *partition) committedAt(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = offset
}

// end is the position when the work has ended, and whether nothing of it is still going on.
func (p *partition) end() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.low(), p.in.hung.Load() == 0
}
