package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/internal/failpoint"
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
	in    *Inbox
	crew  *crew
	gen   Generation
	tp    TopicPartition
	start Start
	fence *fence // nil until it is ours

	mu       sync.Mutex
	track    *tracker
	lineup   lineup
	roomless roomless
	saved    int64 // Invariant: saved <= track.low(), as far as Postgres knows.
	known    int64 // what the group's committed offset is
	failed   error // why no more events are begun
	fenced   bool  // another node has it

	reading context.Context    // when it ends, what is not begun is left to whoever reads on
	halt    context.CancelFunc // ends reading
	working sync.WaitGroup     // of jobs that the crew has
	freed   chan struct{}      // something was settled

	// After an unclean end events are run one by one, each start counted first, until carefulLeft new ones were met, or
	// the end that the log had then.
	careful     bool
	carefulLeft int
	carefulEnd  int64
}

func newPartition(in *Inbox, crew *crew, gen Generation, tp TopicPartition, start Start) *partition {
	return &partition{in: in, crew: crew, gen: gen, tp: tp, start: start, lineup: newLineup(in.c.BatchSize),
		freed: make(chan struct{}, 1)}
}

// run reads the partition until ctx ends, and returns when nothing of it is in hand any more. jobs is the context of
// handlers, which lasts a while longer.
func (p *partition) run(ctx, jobs context.Context) error {
	p.reading, p.halt = context.WithCancel(ctx)
	defer p.halt()
	if err := p.assign(ctx); err != nil {
		if ctx.Err() != nil && !fatal(err) {
			return nil
		}
		return err
	}
	err := p.read(p.reading, jobs)
	p.leaveRoomless()
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

// errOldBounds says that a log's bounds were asked for before our position was read, and that it has grown since, maybe.
var errOldBounds = errors.New("the log's bounds may be older than the position")

// assign makes the partition ours in Postgres.
func (p *partition) assign(ctx context.Context) error {
	known := int64(NoOffset) // our position, as it was before the bounds were asked for
	for wait := 0; ; wait++ {
		first, end, err := p.gen.Bounds(ctx, p.tp)
		if err != nil && ctx.Err() == nil {
			p.in.kafkaTroubled("asking for the log's bounds", err)
		}
		same, ok := false, err == nil
		if ok {
			same, ok = p.sameLog(ctx, first)
		}
		if ok {
			var a assignment
			a, err = p.in.assign(ctx, p.tp.Topic, p.tp.Partition, func(position int64) (reading, error) {
				if position > end && known <= end { // The last owner went on while we waited for the fence, or were frozen.
					known = position
					return reading{}, errOldBounds
				}
				return startAt(position, p.start.Committed, first, end, same, p.start.AdoptCommitted, p.start.SkipDeleted)
			})
			if err == nil {
				failpoint.Hit(failpoint.InboxAssigned)
				p.mu.Lock()
				p.fence, p.track = a.fence, newTracker(a.reading.start)
				p.saved, p.known = a.reading.start, p.start.Committed
				p.careful, p.carefulLeft, p.carefulEnd = a.careful, maxAhead, end
				p.mu.Unlock()
				p.in.c.Logger.Info("partition assigned", "consumer", p.in.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition,
					"epoch", a.fence.Epoch, "start", a.reading.start, "position", a.reading.position, "committed", p.start.Committed, "careful", a.careful)
				if p.in.c.Observer.OnAssigned != nil {
					p.in.c.Observer.OnAssigned(a.fence.Assignment, a.reading.start)
				}
				p.rereads(a.fence, a.reading)
				return nil
			}
			if errors.Is(err, errOldBounds) {
				continue
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
	offset := p.track.next
	for wait := 0; ; {
		if !p.room(ctx) {
			return nil
		}
		pg, err := p.gen.Fetch(ctx, p.tp, offset)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrOffsetOutOfRange):
			return fmt.Errorf("read %s/%d at offset %d: %w: records were deleted before they were handled, or the topic was recreated; "+
				"see what the log holds, and start again", p.tp.Topic, p.tp.Partition, offset, err)
		case err != nil:
			p.in.kafkaTroubled("fetching", err)
			wait++
			if pause(ctx, spread(databaseBase, databaseCap, wait, p.in.random())) != nil {
				return nil
			}
			continue
		}
		wait = 0
		if len(pg.Records) > 0 {
			failpoint.Hit(failpoint.InboxFetched)
		}
		if !p.begin(ctx, jobs, pg) {
			return nil
		}
		offset = pg.Next
	}
}

// room waits until there is little enough in hand to take more. False: ctx ended.
func (p *partition) room(ctx context.Context) bool {
	for {
		if !p.full() {
			return ctx.Err() == nil
		}
		p.gathered() // What is collected has to be begun before there can be room.
		select {
		case <-p.freed:
		case <-ctx.Done():
			return false
		}
	}
}

// full says that there is as much in hand as may be.
func (p *partition) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.spread() >= maxAhead || p.track.bytes >= maxBytesAhead || p.roomless.held > 0
}

// begin takes a page in hand, event by event, and says whether to go on.
func (p *partition) begin(ctx, jobs context.Context, pg Page) bool {
	ds := make([]*delivery, len(pg.Records))
	invalid := make([]step, len(pg.Records))
	for i, r := range pg.Records {
		ds[i], invalid[i] = p.delivery(r)
	}
	// The page was fetched before this is asked: whoever produced an event of a new type after a node declared it is
	// understood.
	declared := map[string]bool{}
	if types := p.in.unknownTypes(ds); len(types) > 0 {
		if !p.patiently(ctx, func(ctx context.Context) (err error) {
			declared, err = p.in.declared(ctx, p.in.pool, types)
			return err
		}) {
			return false
		}
	}
	courses := make([]course, len(ds))
	for i, d := range ds {
		courses[i] = courseOf(sighting{invalid: invalid[i] != nil, garbled: d.garbled, handled: d.h != nil, declared: declared[d.e.Type], stale: d.stale()}, p.in.c.UnknownType)
	}
	if !p.recognise(ctx, ds, courses) {
		return false
	}
	for i, d := range ds {
		s := invalid[i]
		switch courses[i] {
		case courseStale:
			s = p.in.stale(d)
		case courseUnknown:
			s = p.in.unknown(d, declared[d.e.Type])
		}
		if !p.room(ctx) {
			return false
		}
		p.mu.Lock()
		p.lineup.gathering = true
		p.track.begin(d.from.offset, len(d.e.Payload), printOf(d))
		p.mu.Unlock()
		switch {
		case courses[i] == courseSkip:
			p.in.report(d, Skipped, 0)
			p.settle(d)
		case courses[i] == courseKnown:
			p.in.report(d, Duplicate, 0)
			p.settle(d)
		case p.careful:
			if !p.carefully(ctx, jobs, d, p.intake(d, s)) {
				return false
			}
		case s != nil:
			p.dispatch(&job{p: p, ctx: jobs, ds: []*delivery{d}, intake: p.intake(d, s)})
		default:
			p.dispatch(&job{p: p, ctx: jobs, ds: []*delivery{d}, batched: p.in.batched[d.e.Type]})
		}
	}
	p.gathered()
	p.mu.Lock()
	p.track.skipTo(pg.Next)
	p.mu.Unlock()
	return true
}

// intake is how an event goes in that does not come with a batch: by the step, where it is not nil, instead of its handler.
func (p *partition) intake(d *delivery, s step) *intake {
	first := p.in.alone(d, 1)
	if s != nil {
		first = p.in.within(s)
	}
	t := p.in.newIntake(d, first)
	t.h.patient, t.stop = true, p.reading.Done()
	return t
}

// settle says that what became of events is durable.
func (p *partition) settle(ds ...*delivery) {
	p.mu.Lock()
	for _, d := range ds {
		p.track.settle(d.from.offset)
	}
	p.mu.Unlock()
	p.free()
}

// fail stops the partition: no more events are begun.
func (p *partition) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = err
		p.halt()
	} else if fatal(err) && !fatal(p.failed) {
		p.failed = err
	}
}

// fencedOff gives the partition up to the node that has it by now.
func (p *partition) fencedOff() {
	if first, _ := p.lose(errFenced); !first {
		return
	}
	p.in.c.Logger.Warn("another node has the partition", "consumer", p.in.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "epoch", p.fence.Epoch)
	if p.in.c.Observer.OnFenced != nil {
		p.in.c.Observer.OnFenced(p.fence.Assignment)
	}
}

// lose gives the partition up for a reason: nothing more of it is saved, nor committed to Kafka. It says whether that is
// new, and up to where it had been settled.
func (p *partition) lose(reason error) (first bool, settled int64) {
	p.mu.Lock()
	first, settled = !p.fenced, p.track.low()
	p.fenced = true
	p.mu.Unlock()
	p.fail(reason)
	return first, settled
}

// unsaved is the position, when it has moved since it was saved, and the last event below it.
func (p *partition) unsaved() (int64, landmark, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.track == nil || p.fenced {
		return 0, landmark{}, false
	}
	low := p.track.low()
	return low, p.track.last, low > p.saved
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
	if p.track == nil || p.fenced {
		return 0, false
	}
	return p.saved, p.saved != p.known
}

func (p *partition) committedAt(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = offset
}

// end is the position when the work has ended, the last event below it, and whether nothing of it is still going on.
func (p *partition) end() (int64, landmark, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.low(), p.track.last, p.in.hung.Load() == 0
}
