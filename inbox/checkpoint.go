package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"

	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// This file checks that a log is still the one that a position belongs to.

// identityOf identifies an event by source, id, type and payload. It is the same on every node.
func identityOf(d *delivery) int64 { return identityWith(d, d.hash) }

// identityWith is identityOf with another hash.
func identityWith(d *delivery, hash []byte) int64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, d.e.Source)
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, d.e.ID)
	_, _ = h.Write(hash)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}

// logIdentity says whether a log is the one that a position belongs to.
type logIdentity int

const (
	logUnknown logIdentity = iota // the event that was settled last is not known, or no longer in the log
	logSame                       // the log holds that event
	logOther                      // another event has its offset: the topic was recreated, or its log was cut short and written on
)

// identify looks whether the log holds the event that was settled last below the position. A group's committed offset does not
// show that: it may have survived the topic, in a copied cluster say. Kafka's id of a topic would tell, but kafka-go does not ask
// for it. ok is false when the question has to be asked again.
func (p *partition) identify(ctx context.Context, first, end int64) (id logIdentity, ok bool) {
	bounded, cancel := p.bounded(ctx)
	m, err := p.positions.Checkpoint(bounded, p.tp)
	cancel()
	if err != nil {
		p.transient(err)
		return logUnknown, false
	}
	if m.Offset < first || m.Offset >= end { // NoOffset is, too.
		return logUnknown, true
	}
	pg, memory, err := p.fetch(ctx, m.Offset)
	defer memory.Give()
	var large *source.TooLargeError
	if errors.Is(err, source.ErrOffsetOutOfRange) || errors.As(err, &large) { // Reading comes to the same, and holds the partition if it has to.
		return logUnknown, true
	}
	if err != nil {
		p.brokerTransient("fetching the event that was settled last", err)
		return logUnknown, false
	}
	if len(pg.Records) == 0 || pg.Records[0].Offset != m.Offset {
		return logUnknown, true
	}
	d, _ := p.delivery(pg.Records[0])
	if m.Identity == identityOf(d) || m.Identity == identityWith(d, d.payloadHash()) { // It may be of before hashes covered the type.
		return logSame, true
	}
	return logOther, true
}

// notifyReread reports a start below the position.
func (p *partition) notifyReread(f *position.Fence, r position.Reading, id logIdentity) {
	offsets := r.Position - r.Start
	if offsets <= 0 {
		return
	}
	why := "the group's offset lies below the position"
	switch {
	case id == logOther:
		why = "another event has the offset of the one that was settled last: the topic was recreated, or its log was cut short and written on"
	case p.start.Committed == source.NoOffset:
		why = "the group has no offset, and the log does not hold the event that was settled last: the topic may have been recreated; " +
			"if it was not, stop, and set the group's offset to the position"
	}
	p.c.Logger.Warn("records below the position are read again; events without an inbox row become dead letters", "consumer", p.c.Consumer,
		"topic", p.tp.Topic, "partition", p.tp.Partition, "offsets", offsets, "start", r.Start, "position", r.Position, "why", why)
	if p.c.Observer.OnReread != nil {
		p.c.Observer.OnReread(Assignment(f.Claim), offsets)
	}
}
