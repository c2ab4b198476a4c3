package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file fetches a page within the memory that there is.

// fetch reads a page from offset on. What is reserved is the caller's to give back, or that of the page's events. A record that
// is larger than a page is fetched again with more bytes. If it is larger than any event may be, it comes without its value.
func (p *partition) fetch(ctx context.Context, offset int64) (source.Page, readahead.Reservation, error) {
	bytes, must := max(p.wants, p.memory.Page()), false
	for {
		h, err := p.takeMemory(ctx, bytes, must)
		if err != nil {
			return source.Page{}, readahead.Reservation{}, err
		}
		had := h.Bytes
		pg, err := p.gen.Fetch(ctx, p.tp, offset, had)
		err = foreign.Error(err)
		var large *source.TooLargeError
		needs := int64(0)
		switch {
		case errors.As(err, &large):
			needs = large.Needs
		case err == nil && len(pg.Records) > 0 && pg.Records[0].Offset >= offset:
			needs = pg.Records[0].LeftOut
		}
		if had < needs && needs <= p.memory.Most() {
			h.Give()
			bytes, must = needs, true
			continue
		}
		if err != nil {
			h.Give()
			return source.Page{}, readahead.Reservation{}, err
		}
		p.wants = pg.Wants
		if must {
			p.wants = max(p.wants, bytes) // Its neighbours are probably as large.
		}
		return pg, *h, nil
	}
}

// takeMemory waits for memory. Health says so while that takes long.
func (p *partition) takeMemory(ctx context.Context, bytes int64, must bool) (*readahead.Reservation, error) {
	defer p.vitals.waits(p.tp)()
	return p.memory.Take(ctx, bytes, must)
}

// tooLarge is why a partition is held whose next batch cannot be read.
func (p *partition) tooLarge(err error) error {
	var large *source.TooLargeError
	errors.As(err, &large)
	room, remedy := "", "give the records up to there"
	if large.Needs > 0 {
		room = fmt.Sprintf("; %d bytes may be used for it, a quarter of MemoryBudget (%d)", p.memory.Most(), p.memory.Bytes)
		remedy = fmt.Sprintf("raise MemoryBudget to %d at least, or %s", 4*large.Needs, remedy)
	}
	return fmt.Errorf("%w%s; the next batch begins at offset %d: %s: %s; then stop the group's nodes and reset the group's offset to the same value",
		err, room, large.Next, remedy, p.positions.SkipTo(p.tp.Topic, p.tp.Partition, large.Next))
}

// errLeftOut is why a record without its value becomes a dead letter.
func (p *partition) errLeftOut(r source.Record) error {
	return fmt.Errorf("the record at offset %d of %s/%d takes %d bytes unpacked: it must be at most %d, a quarter of MemoryBudget (%d). Its value is in the topic only: "+
		"read it there, and give it to the letter (holdfast dlq edit) before you replay that, or discard the letter", r.Offset, p.tp.Topic, p.tp.Partition,
		r.LeftOut, p.memory.Most(), p.memory.Bytes)
}
