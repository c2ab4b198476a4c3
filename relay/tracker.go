package relay

import (
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file knows no clock, database or broker: it keeps what a lane has read and not finished, in the order of the log.

// pendingState says how far an event in a lane's memory has come.
type pendingState uint8

const (
	queued  pendingState = iota // waits in the queue of its destination, or is in a call
	leaving                     // is to be parked, or its letter to be closed, by the next flush
	settled                     // acknowledged, or its row in parked is committed: the cursor may move past it
)

// pending is one event in a lane's memory: of the log, of the table of parked events, or of both when it was parked while
// the call that publishes it was under way.
type pending struct {
	event *logEvent
	item  item
	order int64        // the lane's own count, in the order of the log; 0 for what was read from parked
	to    *destination // nil for what was parked without being sent
	state pendingState

	inCall bool  // the publisher has it
	kept   int64 // of the budget, when its page has left the tracker without it
	probe  *hold // a parked event that is tried to see whether this is over
	row    *parkedRow
	page   *pageProgress // nil for what was read from parked, or has left its page

	// How it leaves: set when state becomes leaving.
	disposition disposition
	err         error
	headTried   bool // it could not be parked, and the head of its queue was tried apart
}

// parkedRow is where an event is in the table of parked events.
type parkedRow struct {
	place    int64
	attempts int
	triedAt  uint64 // one more than the changes that the lane had made when its outcome was first to be written; 0 before
}

func (p *pending) size() int { return eventBytes(p.event) }

// share takes so many bytes of an event out of what its page has of the budget, and returns what that had.
func (p *pending) share(bytes int) int64 {
	if p.page == nil {
		return 0
	}
	share := min(inMemory*int64(bytes), p.page.kept)
	p.page.kept -= share
	return share
}

// part leaves the page: the event is in a call, and stays in memory when the page goes.
func (p *pending) part() {
	p.kept += p.share(p.size())
	p.page = nil
}

// leave says how an event leaves the lane's memory with the next flush.
func (p *pending) leave(d disposition, err error) {
	p.state, p.disposition, p.err = leaving, d, err
}

// pageProgress is a page whose events are not all settled.
type pageProgress struct {
	page
	pending []pending
	next    int // everything before it is settled
}

// cursorAt is the cursor when the first n events of the page are settled.
func (p *pageProgress) cursorAt(n int) cursor {
	if n == len(p.pending) || p.still {
		return p.after
	}
	c := p.window
	c.pos = p.pending[n-1].event.seq
	return c
}

// tracker keeps the events of the log that a lane has read, from the first one that is not settled. The cursor may move up
// to that one and no further: the events that are settled after it would be read again after a crash.
type tracker struct {
	pages  []*pageProgress
	events int // in pages: settled, or not
	order  int64
	freed  int64 // of the budget, by pages that have left memory

	names     bool                // a producer of the lane wants to know what the cursor is past:
	passed    []publish.EventName // since the lane took them, and
	allReadAt time.Time           // when everything was read that had been committed, and is settled now
}

// add takes a page in and returns its events, all queued.
func (t *tracker) add(p page) []pending {
	progress := &pageProgress{page: p, pending: make([]pending, len(p.events))}
	for i := range p.events {
		e := &p.events[i]
		t.order++
		progress.pending[i] = pending{
			event: e,
			page:  progress,
			order: t.order,
			item:  item{queue: queue{e.Topic, e.Key}, replay: e.letter != 0},
		}
	}
	t.pages = append(t.pages, progress)
	t.events += len(p.events)
	return progress.pending
}

// advance moves past what is settled. It returns the cursor there, and whether it has moved.
func (t *tracker) advance() (c cursor, moved bool) {
	for len(t.pages) > 0 {
		p := t.pages[0]
		from := p.next
		for p.next < len(p.pending) && p.pending[p.next].state == settled {
			if d := p.pending[p.next].disposition; t.names && (d == undecided || d == published) { // else it is parked, or was never published
				t.passed = append(t.passed, publish.EventNameOf(&p.pending[p.next].event.Event))
			}
			p.next++
		}
		if p.next > from || len(p.pending) == 0 {
			c, moved = p.cursorAt(p.next), true
		}
		if p.next < len(p.pending) {
			return c, moved
		}
		if p.last {
			t.allReadAt = p.readAt
		}
		t.events -= len(p.pending)
		t.freed += p.kept
		t.pages[0] = nil
		t.pages = t.pages[1:]
	}
	return c, moved
}

// drop takes the payload of an event out of memory that is settled, and in no call. Without that, an event that waits long
// would keep those of its whole page.
func (t *tracker) drop(p *pending) {
	before := p.size()
	p.event.Payload, p.event.Headers = nil, nil
	t.freed += p.kept + p.share(before-p.size())
	p.kept = 0
}

// toPark are the events that leave with the next flush: those before the first event that is still queued, at most so
// many, and of so many bytes. after is the cursor when they have left. One transaction writes both, so that no event is
// parked twice.
func (t *tracker) toPark(events, bytes int) (leave []*pending, after cursor) {
	for _, p := range t.pages {
		for i := p.next; i < len(p.pending); i++ {
			e := &p.pending[i]
			full := e.state == leaving && len(leave) > 0 && (len(leave) == events || bytes < e.size())
			if e.state == queued || full {
				if i > 0 {
					after = p.cursorAt(i)
				}
				return leave, after
			}
			if e.state == leaving {
				leave = append(leave, e)
				bytes -= e.size()
			}
		}
		after = p.after
	}
	return leave, after
}

// untouched is the order from which on no event has been sent or parked: what comes from there can be read again without
// being published twice.
func (t *tracker) untouched() int64 {
	last := int64(0)
	for _, p := range t.pages {
		for i := p.next; i < len(p.pending); i++ {
			if e := &p.pending[i]; e.state != queued || e.inCall {
				last = e.order
			}
		}
	}
	return last + 1
}

// queuedBefore are the events that are queued before that order.
func (t *tracker) queuedBefore(order int64) (found []*pending) {
	for _, p := range t.pages {
		for i := p.next; i < len(p.pending); i++ {
			if e := &p.pending[i]; e.order < order && e.state == queued {
				found = append(found, e)
			}
		}
	}
	return found
}

// destination is the queue of one partition. One call at a time publishes from it, so its events leave in order, and a
// partition that answers late delays its own.
type destination struct {
	spot
	route    *topicRoute
	queue    []*pending
	call     []*pending // in the call under way; nil for none
	began    time.Time  // of the call
	slot     *callSlot  // of the call; nil for none, and when the call is slow
	share    *laneShare // the call, if it is shared; nil for one of its own
	reserved int64      // of the budget by the call, when its lane has ended

	// since is when the oldest event without an acknowledgement began to wait, for the partition and not for its turn; zero
	// when nothing waits. refused says that the last answer was this partition's own trouble.
	since   time.Time
	refused bool
	told    bool // that it says nothing
	tries   int
	most    int       // events in a call; 0 for Config.BatchSize
	retryAt time.Time // nothing is sent before it
	checkAt time.Time // when to look whether it is slow
	turnAt  time.Time // since then it has waited for its turn at a backlog's calls; zero when it does not
}

// enqueue adds an event at the end.
func (d *destination) enqueue(p *pending, now time.Time) {
	if d.since.IsZero() {
		d.since = now
	}
	p.to = d
	d.queue = append(d.queue, p)
	if p.row == nil {
		d.route.queued++
	}
}

// overtake moves the last event before those for which passes says that it may be: they are of other keys.
func (d *destination) overtake(passes func(*pending) bool) {
	last := len(d.queue) - 1
	at := last
	for at > 0 && passes(d.queue[at-1]) {
		at--
	}
	p := d.queue[last]
	copy(d.queue[at+1:], d.queue[at:last])
	d.queue[at] = p
}

// begin is the start of a call. The partition is to blame for waiting from its first call on.
func (d *destination) begin(batch []*pending, slot *callSlot, now time.Time, slowAfter time.Duration) {
	d.call, d.slot, d.began = batch, slot, now
	if !d.turnAt.IsZero() {
		d.since = d.since.Add(now.Sub(latest(d.turnAt, d.since)))
		d.turnAt = time.Time{}
	}
	if d.tries == 0 {
		d.since, d.checkAt = now, now.Add(slowAfter)
	}
}

// excuse says that an answer has waited for the lane for so long: the partition is not to blame for that.
func (d *destination) excuse(waited time.Duration) {
	d.began = d.began.Add(waited)
	if !d.since.IsZero() {
		d.since = d.since.Add(waited)
	}
}

// awaitTurn says that what is queued could be sent, and waits for a call.
func (d *destination) awaitTurn(now time.Time) {
	if d.turnAt.IsZero() {
		d.turnAt = now
	}
}

// toBlame says whether what waits here waits for the partition: nothing does that has never been sent, or waits for its turn.
func (d *destination) toBlame() bool {
	return !d.since.IsZero() && d.turnAt.IsZero() && (d.call != nil || d.tries > 0)
}

// release counts an event of the log that is not queued any more.
func (d *destination) release(p *pending) {
	if p.row == nil {
		d.route.queued--
	}
}

// take removes the first events of the queue, at most so many and of so many bytes, but one at least.
func (d *destination) take(events, bytes int) []*pending {
	n := 0
	for n < len(d.queue) && n < events {
		size := d.queue[n].size()
		if n > 0 && size > bytes {
			break
		}
		bytes -= size
		n++
	}
	taken := d.queue[:n:n]
	if d.queue = d.queue[n:]; len(d.queue) == 0 {
		d.queue = nil // its array would keep what has left in memory
	}
	return taken
}

// putBack returns events of a call to the front of the queue, in their order.
func (d *destination) putBack(events []*pending) {
	if len(events) > 0 {
		d.queue = append(append(make([]*pending, 0, len(events)+len(d.queue)), events...), d.queue...)
	}
}

// idle says whether nothing waits here.
func (d *destination) idle() bool { return len(d.queue) == 0 && d.call == nil }
