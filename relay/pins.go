package relay

import (
	"slices"
	"time"
)

// pins says when to try to empty a segment. A try takes an exclusive lock: while it waits for that, nobody reads the log. So
// nothing is tried that cannot succeed: a transaction that holds a lock on the segment at two looks in a row pins it, as a
// producer that takes long does, a prepared transaction, or pg_dump. It knows no clock, context or database. The zero value is
// ready.
type pins struct{ segments map[int]pin }

// pin is what is known of one segment.
type pin struct {
	holders []string  // who had a lock on it at the last look; nil before the first
	next    time.Time // not to be looked at before
}

// When to look at a segment again: soon after the first look, and some seconds after a try failed, or while it is pinned.
const (
	lookAgainAfter = 250 * time.Millisecond
	tryAgainAfter  = 3 * time.Second
)

// look says whether a segment is to be looked at now.
func (p *pins) look(segment int, now time.Time) bool { return !now.Before(p.segments[segment].next) }

// found takes the holders that a look found, and says whether to try now.
func (p *pins) found(segment int, holders []string, now time.Time) (try bool) {
	before := p.segments[segment].holders
	first := before == nil && len(holders) > 0
	pinned := slices.ContainsFunc(holders, func(h string) bool { return slices.Contains(before, h) })
	next := now.Add(tryAgainAfter)
	if first {
		next = now.Add(lookAgainAfter)
	}
	p.set(segment, pin{holders: append([]string{}, holders...), next: next})
	return !first && !pinned
}

// emptied forgets a segment: it has just been emptied, or is empty.
func (p *pins) emptied(segment int) { delete(p.segments, segment) }

func (p *pins) set(segment int, to pin) {
	if p.segments == nil {
		p.segments = map[int]pin{}
	}
	p.segments[segment] = to
}
