package inbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file reads a partition page by page, and begins its events.

// run reads the partition until ctx ends. It returns when nothing of it is in progress any more. jobs is the context of
// handlers, which lasts longer than ctx.
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
	p.halt()
	p.leaveAtCapacity()
	p.workers.drop(p)
	p.working.Wait()
	p.mu.Lock()
	p.track.Give()
	p.mu.Unlock()
	if err == nil {
		p.mu.Lock()
		err = p.failed
		p.mu.Unlock()
	}
	if err != nil && ctx.Err() != nil && !fatal(err) && !errors.Is(err, failure.ErrFenced) {
		return nil // The node was told to stop.
	}
	return err
}

// read fetches pages and begins their events, until ctx ends or an event stops the partition.
func (p *partition) read(ctx, jobs context.Context) error {
	offset := p.track.Next
	for wait, tries := 0, 0; ; {
		if !p.awaitCapacity(ctx, nil) {
			return nil
		}
		until := p.until.Until(p.tp)
		if offset >= until { // What has begun is settled meanwhile.
			<-ctx.Done()
			return nil
		}
		pg, memory, err := p.fetch(ctx, offset)
		var large *source.TooLargeError
		switch {
		case ctx.Err() != nil:
			memory.Give() // The source may have answered all the same.
			return nil
		case errors.Is(err, source.ErrOffsetOutOfRange):
			next, held := p.outOfRange(ctx, offset)
			if ctx.Err() != nil {
				return nil
			}
			if held != nil {
				p.lose(held)
				return held
			}
			if next > offset {
				p.mu.Lock()
				p.track.SkipTo(next)
				p.mu.Unlock()
				offset = next
				continue
			}
			fallthrough // The log has the offset after all.
		case err != nil && !errors.As(err, &large):
			p.brokerTransient("fetching", err)
			wait++
			if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, p.random())) != nil {
				return nil
			}
			continue
		case err != nil:
			tries++
			held := p.hold(ctx, p.tooLarge(err), tries, true)
			if ctx.Err() != nil {
				return nil
			}
			if held != nil {
				p.lose(held)
				return held
			}
			continue
		}
		if tries > 0 {
			if held := p.letGo(ctx); held != nil {
				memory.Give()
				if ctx.Err() != nil {
					return nil
				}
				p.lose(held)
				return held
			}
		}
		wait, tries = 0, 0
		p.vitals.fetched()
		p.sayWithheld(&pg, offset)
		pg = readahead.Cut(pg, until)
		if len(pg.Records) > 0 {
			failpoint.Hit(failpoint.InboxFetched)
		}
		if !p.begin(ctx, jobs, &pg, memory) {
			return nil
		}
		offset = pg.Next
	}
}

// awaitCapacity waits until few enough events are in progress to begin more. Those of next were read, and are the first to begin. It
// returns false when ctx ends.
func (p *partition) awaitCapacity(ctx context.Context, next []*delivery) bool {
	every := time.Duration(0)
	if len(next) > 0 {
		every = hotAfter // A key becomes hot by waiting, while nothing is settled.
	}
	return p.awaitProgress(ctx, every, func() bool {
		full := p.full()
		if full {
			p.storeHotKey(ctx, next)
		}
		return full
	})
}

// awaitProgress waits while a condition holds that settled events may end. It looks at the condition when something was settled, and if
// every is not 0 so often besides. It returns false when ctx ends.
func (p *partition) awaitProgress(ctx context.Context, every time.Duration, still func() bool) bool {
	for {
		if !still() {
			return ctx.Err() == nil
		}
		p.offerBatches() // Open batches have to begin before there can be room.
		var again <-chan time.Time
		if every > 0 {
			again = time.After(every)
		}
		select {
		case <-p.freed:
		case <-again:
		case <-ctx.Done():
			return false
		}
	}
}

// full reports that no more events may be in progress.
func (p *partition) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.Unsettled() >= readahead.MaxAhead || p.track.Spread() >= readahead.MaxSpread || p.track.Bytes >= p.memory.Share() || p.atCapacity.refused > 0 ||
		p.replaying && p.track.Unsettled() >= 2*p.chunk()
}

// busy reports that events are in progress.
func (p *partition) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.track.Unsettled() > 0
}

// begin begins the events of a page, which take their part of its memory with them. It returns false when reading has to end.
func (p *partition) begin(ctx, jobs context.Context, pg *source.Page, memory readahead.Reservation) bool {
	costs := make([]int64, len(pg.Records))
	parts := make([]readahead.Reservation, len(pg.Records))
	for i := range pg.Records {
		costs[i] = readahead.RecordCost(&pg.Records[i])
		parts[i] = memory.Part(costs[i])
	}
	memory.Give()
	defer func() {
		for i := range parts { // what does not begin
			parts[i].Give()
		}
	}()
	ds := make([]*delivery, len(pg.Records))
	bad := make([]*badRecord, len(pg.Records))
	for i, r := range pg.Records {
		ds[i], bad[i] = p.delivery(r)
	}
	pg.Records = nil // An event that is settled takes no memory, though later ones of its page have not begun.
	// The page was fetched before this question: a type that a node declares, and that a producer then uses, is known.
	declared := map[string]bool{}
	if types := unknownTypes(ds); len(types) > 0 {
		if !p.untilAnswered(ctx, func(ctx context.Context) (err error) {
			declared, err = p.declarations.declared(ctx, p.pool, types)
			return err
		}) {
			return false
		}
	}
	dispositions := make([]disposition, len(ds))
	for i, d := range ds {
		dispositions[i] = dispositionOf(recordFacts{
			invalid:  bad[i] != nil,
			garbled:  bad[i] != nil && bad[i].garbled,
			handled:  d.h != nil,
			declared: declared[d.e.Type],
			stale:    d.stale(),
		}, p.c.UnknownType)
	}
	if !p.recognise(ctx, ds, dispositions) {
		return false
	}
	counted := 0
	for i, d := range ds {
		var s task // nil: the handler runs
		switch dispositions[i] {
		case disposeInvalid:
			s = bad[i].letter
		case disposeStale:
			s = p.receiver.stale(d)
		case disposeUnknown:
			s = p.receiver.unknown(d, declared[d.e.Type])
		}
		if !p.awaitCapacity(ctx, ds[i:]) {
			return false
		}
		if p.replaying && i >= counted {
			n, ok := p.countChunk(ctx, ds[i:], dispositions[i:])
			if counted = i + n; !ok {
				return false
			}
		}
		if d.suspect && !p.awaitProgress(ctx, 0, p.busy) {
			return false
		}
		p.mu.Lock()
		p.scheduler.adding = true
		p.track.Begin(d.from.offset, costs[i], parts[i], identityOf(d))
		parts[i].Bytes = 0
		p.mu.Unlock()
		switch {
		case dispositions[i] == disposeSkip:
			p.receiver.skips.note(d.e)
			p.report(d, Skipped, 0)
			p.settle(d)
		case dispositions[i] == disposeKnown:
			p.report(d, Duplicate, 0)
			p.settle(d)
		case d.suspect:
			if !p.replaySerially(ctx, jobs, d) {
				return false
			}
		case s != nil:
			p.dispatch(&job{
				owner:  p,
				ctx:    jobs,
				stop:   ctx.Done(),
				ds:     []*delivery{d},
				first:  d.e.Type,
				intake: p.newIntake(d, s, ctx.Done()),
			})
		default:
			j := &job{owner: p, ctx: jobs, stop: ctx.Done(), ds: []*delivery{d}, first: d.e.Type}
			if p.receiver.registry.batched[d.e.Type] {
				j.kind = jobBatch
			}
			p.dispatch(j)
		}
		ds[i] = nil
		if p.replaying {
			p.replayed(d.from.offset, dispositions[i] == disposeSkip || dispositions[i] == disposeKnown)
		}
	}
	p.offerBatches()
	p.mu.Lock()
	p.track.SkipTo(pg.Next)
	p.mu.Unlock()
	return true
}

// unknownTypes are the types in a page that this node has no handler for.
func unknownTypes(ds []*delivery) []string {
	var types []string
	for _, d := range ds {
		if d.h == nil && !slices.Contains(types, d.e.Type) {
			types = append(types, d.e.Type)
		}
	}
	return types
}
