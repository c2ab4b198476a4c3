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

// This file checks that a log is still the one that a position belongs to.

// identityOf identifies an event by source, id and payload. It is the same on every node.
func identityOf(d *delivery) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, d.e.Source)
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, d.e.ID)
	_, _ = h.Write(d.hash)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// sameIdentity reports whether the log holds the event that was settled last below the position. It matters when the group has
// no committed offset, which expired or went with the topic. same is false when that cannot be found out. ok is false when
// the question has to be asked again.
func (p *partition) sameIdentity(ctx context.Context, first int64) (same, ok bool) {
	if p.start.Committed != NoOffset {
		return false, true
	}
	m := checkpoint{offset: NoOffset}
	bounded, cancel := p.bounded(ctx)
	err := p.pool.QueryRow(bounded, p.sql.checkpoint, p.c.Consumer, p.tp.Topic, int32(p.tp.Partition)).Scan(&m.offset, &m.identity)
	cancel()
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		p.transient(fmt.Errorf("read checkpoint of %s/%d: %w", p.tp.Topic, p.tp.Partition, err))
		return false, false
	}
	if m.offset < first { // NoOffset is, too.
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

// notifyReread reports a start below the position.
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
	p.c.Logger.Warn("records below the position are read again; events without an inbox row become dead letters", "consumer", p.c.Consumer,
		"topic", p.tp.Topic, "partition", p.tp.Partition, "offsets", offsets, "start", r.start, "position", r.position, "why", why)
	if p.c.Observer.OnReread != nil {
		p.c.Observer.OnReread(f.Assignment, offsets)
	}
}
