package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"

	"github.com/jackc/pgx/v5"
)

// This file tells whether a log is still the one that a position speaks of.

// identityOf is equal for events of one source, id and payload, on every node, and differs for others.
func identityOf(d *delivery) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, d.e.Source)
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, d.e.ID)
	_, _ = h.Write(d.hash)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// sameIdentity says whether the log holds the event that was settled last below our position. It is asked where the group has
// no committed offset: that expired, or went with the topic. Same is false where it cannot be told, ok where it must be
// asked again.
func (p *partition) sameIdentity(ctx context.Context, first int64) (same, ok bool) {
	if p.start.Committed != NoOffset {
		return false, true
	}
	m := checkpoint{offset: NoOffset}
	err := p.pool.QueryRow(ctx, p.sql.checkpoint, p.c.Consumer, p.tp.Topic, int32(p.tp.Partition)).Scan(&m.offset, &m.identity)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		p.transient(fmt.Errorf("read checkpoint of %s/%d: %w", p.tp.Topic, p.tp.Partition, err))
		return false, false
	}
	if m.offset < first { // NoOffset too
		return false, true
	}
	pg, err := p.gen.Fetch(ctx, p.tp, m.offset)
	if errors.Is(err, ErrOffsetOutOfRange) {
		return false, true
	}
	if err != nil {
		p.kafkaTransient("fetching the event that was settled last", err)
		return false, false
	}
	if len(pg.Records) == 0 || pg.Records[0].Offset != m.offset {
		return false, true
	}
	d, _ := p.delivery(pg.Records[0])
	return identityOf(d) == m.identity, true
}

// notifyReread tells of a start below the position.
func (p *partition) notifyReread(f *fence, r reading) {
	offsets := r.position - r.start
	if offsets <= 0 {
		return
	}
	why := "the group's offset lies below the position"
	if p.start.Committed == NoOffset {
		why = "the group has no offset, and the log does not hold the event that was settled last: the topic may have been made again; " +
			"if it was not, stop, and set the group's offset to the position"
	}
	p.c.Logger.Warn("records below the position are read again: what no row knows becomes a letter", "consumer", p.c.Consumer,
		"topic", p.tp.Topic, "partition", p.tp.Partition, "offsets", offsets, "start", r.start, "position", r.position, "why", why)
	if p.c.Observer.OnReread != nil {
		p.c.Observer.OnReread(f.Assignment, offsets)
	}
}
