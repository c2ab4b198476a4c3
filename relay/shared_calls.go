package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// With many partitions each has an event or two of a page, and a call for each costs far more than its events do. Then the
// lanes of a relay give what they have to its shared calls. Each is a call of many partitions, with what several lanes have for
// a partition at once. A partition that failed or answered late goes alone, by calls of its own, until it answers promptly.

const (
	wideFrom     = 32  // partitions: a lane with more of them that have something unacknowledged gives to the shared calls
	sharedAtOnce = 4   // under way at a time, besides those that take long
	sharedLate   = 12  // that take long
	sharedFirst  = 32  // partitions of the first call
	sharedMost   = 128 // of any: one of them that does not answer keeps the others waiting, once
	sharedLeast  = 16  // of a call after others took long

	// partitionBytes is how much of a partition a call has before what other lanes have for it waits for the next one.
	partitionBytes = 512 << 10
)

// sharedCalls makes calls of many partitions. All lanes of a relay use it.
type sharedCalls struct {
	publisher publish.Gatherer // nil: nothing is shared
	env       *env
	from      int // wideFrom
	largest   int // sharedMost

	mu    sync.Mutex
	spots map[spot]*sharedPartition
	order []*sharedPartition   // those that have something to send and no call, the one that has waited longest first
	calls map[*sharedCall]bool // under way
	most  int                  // partitions of the next call: fewer when calls take long
	usual time.Duration        // what a call has taken of late
	late  map[spot]bool        // the last shared call was late: any of those in it may be why
	alone map[spot]bool        // what failed, or was late twice in a row, and is not shared
}

// sharedPartition is what lanes have given for a partition.
type sharedPartition struct {
	spot
	waiting []*laneShare
	call    *sharedCall // nil while nothing of it is under way
}

// laneShare is what one lane has given for a partition: a call of its own to the lane.
type laneShare struct {
	lane     *lane
	ctx      context.Context
	to       *destination
	events   []holdfast.Event
	bytes    int
	observed beginning
	ended    func([]error) // tells the observer how it ended
}

func (l *lane) share(ctx context.Context, to *destination, batch []*pending, events []holdfast.Event) *laneShare {
	p := &laneShare{
		lane:     l,
		ctx:      ctx,
		to:       to,
		events:   events,
		observed: l.observed(to, batch, events),
	}
	for _, e := range batch {
		p.bytes += e.size()
	}
	return p
}

// sharedCall is a call of many partitions.
type sharedCall struct {
	began time.Time
	parts [][]*laneShare // of each partition
	spots []*sharedPartition
}

func newSharedCalls(p Publisher, e *env) *sharedCalls {
	g := &sharedCalls{
		env:     e,
		from:    wideFrom,
		largest: sharedMost,
		spots:   map[spot]*sharedPartition{},
		calls:   map[*sharedCall]bool{},
		most:    sharedFirst,
		late:    map[spot]bool{},
		alone:   map[spot]bool{},
	}
	g.publisher, _ = p.(publish.Gatherer)
	return g
}

// takes says whether what waits for a partition may be shared.
func (sc *sharedCalls) takes(at spot) bool {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return !sc.alone[at]
}

// judge records how a partition answered a call, of its own or shared.
func (sc *sharedCalls) judge(at spot, took time.Duration, well, shared bool) {
	if sc.publisher == nil {
		return
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	switch late := took >= lateFrom(sc.usual); {
	case !well, late && (!shared || sc.late[at]):
		sc.alone[at] = true
		delete(sc.late, at)
	case late:
		sc.late[at] = true
	default:
		delete(sc.late, at)
		delete(sc.alone, at)
	}
}

// lateFrom is what a call may take before it is late: where all of them take long, the broker has more to do than it can, and
// calls of their own would be more work for it.
func lateFrom(usual time.Duration) time.Duration { return max(promptly, 4*usual) }

// add takes what a lane has for some partitions. The answers go to the lane, as those of its own calls.
func (sc *sharedCalls) add(shares []*laneShare) {
	sc.mu.Lock()
	for _, share := range shares {
		s := sc.spots[share.to.spot]
		if s == nil {
			s = &sharedPartition{spot: share.to.spot}
			sc.spots[share.to.spot] = s
		}
		if s.call == nil && len(s.waiting) == 0 {
			sc.order = append(sc.order, s)
		}
		s.waiting = append(s.waiting, share)
	}
	sc.mu.Unlock()
	sc.start()
}

// since is when the call of a share began, or that of the same partition for which it waits; zero if it waits for its turn
// alone.
func (sc *sharedCalls) since(p *laneShare) time.Time {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if s := sc.spots[p.to.spot]; s != nil && s.call != nil {
		return s.call.began
	}
	return time.Time{}
}

// start makes as many calls as may be under way.
func (sc *sharedCalls) start() {
	for c := sc.next(); c != nil; c = sc.next() {
		sc.env.call(c.parts[0][0].lane, func() { sc.send(c) })
		sc.env.after(promptly, sc.start) // it is late then, and keeps no others
	}
}

// next takes what the next call sends; nil if there is nothing, or no call may be made.
func (sc *sharedCalls) next() *sharedCall {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	now := sc.env.now()
	punctual := 0
	for c := range sc.calls {
		if now.Sub(c.began) < promptly {
			punctual++
		}
	}
	if len(sc.order) == 0 || punctual >= sharedAtOnce || len(sc.calls) >= sharedAtOnce+sharedLate {
		return nil
	}
	c := &sharedCall{began: now}
	bytes := callBytes
	for len(sc.order) > 0 && len(c.spots) < min(sc.most, sc.largest) && bytes > 0 {
		s := sc.order[0]
		sc.order = sc.order[1:]
		n, taken := 0, 0
		for ; n < len(s.waiting) && (n == 0 || taken+s.waiting[n].bytes <= partitionBytes); n++ {
			taken += s.waiting[n].bytes
		}
		bytes -= taken
		c.parts, c.spots = append(c.parts, s.waiting[:n:n]), append(c.spots, s)
		s.waiting, s.call = s.waiting[n:], c
	}
	if len(sc.order) == 0 {
		sc.order = nil
	}
	sc.calls[c] = true
	return c
}

// send makes a call and gives its answers to the lanes, each partition's as soon as it is known.
func (sc *sharedCalls) send(c *sharedCall) {
	var batches [][]holdfast.Event
	var places []int
	for i, parts := range c.parts {
		kept := make([]*laneShare, 0, len(parts))
		for _, p := range parts {
			if p.ctx.Err() != nil || !p.lane.leased() { // the lane was lost, or the process frozen, since it was given
				p.answer(slices.Repeat([]error{errLost}, len(p.events)), c.began)
				continue
			}
			_, p.ended = p.observed(p.ctx) // the call has the context of no lane alone
			kept = append(kept, p)
		}
		c.parts[i] = kept
		if len(kept) == 0 {
			sc.answered(c, i)
			continue
		}
		batches, places = append(batches, joined(kept)), append(places, i)
	}
	if len(batches) > 0 {
		sc.publish(c, batches, places)
	}
	sc.mu.Lock()
	delete(sc.calls, c)
	took := sc.env.now().Sub(c.began)
	sc.most = nextShared(sc.most, took)
	sc.usual += (min(took, slowAfter) - sc.usual) / 8
	sc.mu.Unlock()
	sc.start()
}

// joined is what lanes have for a partition, one after the other: their keys differ.
func joined(parts []*laneShare) []holdfast.Event {
	if len(parts) == 1 {
		return parts[0].events
	}
	var all []holdfast.Event
	for _, p := range parts {
		all = append(all, p.events...)
	}
	return all
}

// publish calls the publisher. It panics if that does not answer once for each event.
func (sc *sharedCalls) publish(c *sharedCall, batches [][]holdfast.Event, places []int) {
	ctx, cancel := untilAll(c.parts)
	defer cancel()
	failpoint.Hit(failpoint.RelayProducing)
	var answered atomic.Int64
	sc.publisher.PublishTogether(ctx, batches, func(batch int, errs []error) {
		answered.Add(1)
		checkAnswers(errs, len(batches[batch]))
		sc.deliver(c, places[batch], foreign.Errors(errs))
	})
	failpoint.Hit(failpoint.RelayProduced)
	if n := int(answered.Load()); n != len(batches) {
		panic(fmt.Sprintf("relay: the publisher answered %d times for %d batches: PublishTogether must answer once for each", n, len(batches)))
	}
}

// deliver gives each lane its answers for a partition.
func (sc *sharedCalls) deliver(c *sharedCall, place int, errs []error) {
	well := true
	for _, err := range errs {
		if fault := publish.FaultOf(err); fault != "" && fault != publish.FaultRecord {
			well = false
		}
	}
	sc.judge(c.spots[place].spot, sc.env.now().Sub(c.began), well, true)
	parts := c.parts[place]
	sc.answered(c, place)
	for _, p := range parts {
		n := len(p.events)
		p.ended(errs[:n:n])
		p.answer(errs[:n:n], c.began)
		errs = errs[n:]
	}
}

// answered says that a call has no more to do with a partition. What waited for that is sent with what else waits: when the call ends or
// is late, and at once if it is late already.
func (sc *sharedCalls) answered(c *sharedCall, place int) {
	sc.mu.Lock()
	s := c.spots[place]
	s.call = nil
	some := len(s.waiting) > 0
	if some {
		sc.order = append(sc.order, s)
	} else {
		delete(sc.spots, s.spot)
	}
	sc.mu.Unlock()
	if some && sc.env.now().Sub(c.began) >= promptly {
		sc.start()
	}
}

// answer gives a lane its answers.
func (ls *laneShare) answer(errs []error, began time.Time) {
	ls.lane.answered.put(answered{ls.to, ls.events, errs, began, ls.lane.r.env.now()})
}

// untilAll is a context that is done when those of all lanes are: a lane that is lost takes nothing from the others.
func untilAll(parts [][]*laneShare) (context.Context, context.CancelFunc) {
	lanes := map[*lane]context.Context{}
	for _, of := range parts {
		for _, p := range of {
			lanes[p.lane] = p.ctx
		}
	}
	var left atomic.Int64
	left.Store(int64(len(lanes)))
	ctx, cancel := context.WithCancel(context.Background())
	stops := make([]func() bool, 0, len(lanes))
	for _, of := range lanes {
		stops = append(stops, context.AfterFunc(of, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		}))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// nextShared is how many partitions the next call may have, after one that was allowed most of them and took took. What shares a
// call waits for all of it.
func nextShared(most int, took time.Duration) int {
	if took >= promptly/2 {
		return max(most/2, sharedLeast)
	}
	return min(most+most/4, sharedMost)
}

// giveShares gives what is queued to the shared calls, if the lane has enough for many partitions. Partitions in any trouble are left
// to calls of their own.
func (l *lane) giveShares(ctx context.Context, before int64, now time.Time) error {
	g := l.r.shared
	if g.publisher == nil || l.outage != nil || !l.wide(g.from) {
		return nil
	}
	if !l.leased() {
		return l.unrenewed()
	}
	var shares []*laneShare
	for _, d := range l.destinations {
		if len(d.queue) == 0 || d.call != nil || d.tries > 0 || d.most > 0 || !g.takes(d.spot) ||
			len(l.holds) > 0 && (l.holds[d.spot] != nil || l.holds[spot{d.topic, wholeTopic}] != nil) {
			continue
		}
		batch := l.batchOf(d, before)
		if len(batch) == 0 {
			continue
		}
		p := l.share(ctx, d, batch, eventsOf(batch))
		d.begin(batch, nil, now, l.slowAfter())
		d.share = p
		l.started(true)
		shares = append(shares, p)
	}
	if len(shares) > 0 {
		g.add(shares)
	}
	return nil
}
