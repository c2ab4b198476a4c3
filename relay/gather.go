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
)

// With many partitions each has an event or two of a page, and a call for each costs far more than its events do. Then the
// lanes of a relay give what they have to its gatherer, which sends many partitions in a call, and what several lanes have for
// a partition at once. A partition that failed or answered late goes alone, by calls of its own, until it answers promptly.

const (
	wideFrom      = 32  // partitions: a lane with more of them that have something unacknowledged gives to the gatherer
	gatheredCalls = 4   // under way at a time, besides those that take long
	gatheredLate  = 12  // that take long
	gatheredFirst = 32  // partitions of the first call
	gatheredMost  = 128 // of any: one of them that does not answer keeps the others waiting, once
	gatheredLeast = 16  // of a call after others took long

	// partitionBytes is how much of a partition a call has before what other lanes have for it waits for the next one.
	partitionBytes = 512 << 10
)

// gatherer makes calls of many partitions. All lanes of a relay use it.
type gatherer struct {
	publisher Gatherer // nil: nothing is gathered
	env       *env
	from      int // wideFrom
	largest   int // gatheredMost

	mu    sync.Mutex
	spots map[spot]*gathered
	order []*gathered        // those that have something to send and no call, the one that has waited longest first
	calls map[*together]bool // under way
	most  int                // partitions of the next call: fewer when calls take long
	usual time.Duration      // what a call has taken of late
	late  map[spot]bool      // the last shared call was late: any of those in it may be why
	alone map[spot]bool      // what failed, or was late twice in a row, and is not gathered
}

// gathered is what lanes have given for a partition.
type gathered struct {
	spot
	waiting []*portion
	call    *together // nil while nothing of it is under way
}

// portion is what one lane has given for a partition: a call of its own to the lane.
type portion struct {
	lane     *lane
	ctx      context.Context
	to       *destination
	events   []holdfast.Event
	bytes    int
	observed beginning
	ended    func([]error) // tells the observer how it ended
}

func (l *lane) portion(ctx context.Context, to *destination, batch []*pending, events []holdfast.Event) *portion {
	p := &portion{
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

// together is a call of many partitions.
type together struct {
	began time.Time
	parts [][]*portion // of each partition
	spots []*gathered
}

func newGatherer(p Publisher, e *env) *gatherer {
	g := &gatherer{
		env:     e,
		from:    wideFrom,
		largest: gatheredMost,
		spots:   map[spot]*gathered{},
		calls:   map[*together]bool{},
		most:    gatheredFirst,
		late:    map[spot]bool{},
		alone:   map[spot]bool{},
	}
	g.publisher, _ = p.(Gatherer)
	return g
}

// takes says whether what waits for a partition may be gathered.
func (g *gatherer) takes(at spot) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.alone[at]
}

// judge records how a partition answered a call, of its own or shared.
func (g *gatherer) judge(at spot, took time.Duration, well, shared bool) {
	if g.publisher == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch late := took >= lateFrom(g.usual); {
	case !well, late && (!shared || g.late[at]):
		g.alone[at] = true
		delete(g.late, at)
	case late:
		g.late[at] = true
	default:
		delete(g.late, at)
		delete(g.alone, at)
	}
}

// lateFrom is what a call may take before it is late: where all of them take long, the broker has more to do than it can, and
// calls of their own would be more work for it.
func lateFrom(usual time.Duration) time.Duration { return max(promptly, 4*usual) }

// add takes what a lane has for some partitions. The answers go to the lane, as those of its own calls.
func (g *gatherer) add(portions []*portion) {
	g.mu.Lock()
	for _, p := range portions {
		s := g.spots[p.to.spot]
		if s == nil {
			s = &gathered{spot: p.to.spot}
			g.spots[p.to.spot] = s
		}
		if s.call == nil && len(s.waiting) == 0 {
			g.order = append(g.order, s)
		}
		s.waiting = append(s.waiting, p)
	}
	g.mu.Unlock()
	g.start()
}

// since is when the call of a portion began, or that of the same partition for which it waits; zero if it waits for its turn
// alone.
func (g *gatherer) since(p *portion) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.spots[p.to.spot]; s != nil && s.call != nil {
		return s.call.began
	}
	return time.Time{}
}

// start makes as many calls as may be under way.
func (g *gatherer) start() {
	for c := g.next(); c != nil; c = g.next() {
		g.env.call(c.parts[0][0].lane, func() { g.send(c) })
		g.env.after(promptly, g.start) // it is late then, and keeps no others
	}
}

// next takes what the next call sends; nil if there is nothing, or no call may be made.
func (g *gatherer) next() *together {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.env.now()
	punctual := 0
	for c := range g.calls {
		if now.Sub(c.began) < promptly {
			punctual++
		}
	}
	if len(g.order) == 0 || punctual >= gatheredCalls || len(g.calls) >= gatheredCalls+gatheredLate {
		return nil
	}
	c := &together{began: now}
	bytes := callBytes
	for len(g.order) > 0 && len(c.spots) < min(g.most, g.largest) && bytes > 0 {
		s := g.order[0]
		g.order = g.order[1:]
		n, taken := 0, 0
		for ; n < len(s.waiting) && (n == 0 || taken+s.waiting[n].bytes <= partitionBytes); n++ {
			taken += s.waiting[n].bytes
		}
		bytes -= taken
		c.parts, c.spots = append(c.parts, s.waiting[:n:n]), append(c.spots, s)
		s.waiting, s.call = s.waiting[n:], c
	}
	if len(g.order) == 0 {
		g.order = nil
	}
	g.calls[c] = true
	return c
}

// send makes a call and gives its answers to the lanes, each partition's as soon as it is known.
func (g *gatherer) send(c *together) {
	var batches [][]holdfast.Event
	var places []int
	for i, parts := range c.parts {
		kept := make([]*portion, 0, len(parts))
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
			g.answered(c, i)
			continue
		}
		batches, places = append(batches, joined(kept)), append(places, i)
	}
	if len(batches) > 0 {
		g.publish(c, batches, places)
	}
	g.mu.Lock()
	delete(g.calls, c)
	took := g.env.now().Sub(c.began)
	g.most = nextGathered(g.most, took)
	g.usual += (min(took, slowAfter) - g.usual) / 8
	g.mu.Unlock()
	g.start()
}

// joined is what lanes have for a partition, one after the other: their keys differ.
func joined(parts []*portion) []holdfast.Event {
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
func (g *gatherer) publish(c *together, batches [][]holdfast.Event, places []int) {
	ctx, cancel := untilAll(c.parts)
	defer cancel()
	failpoint.Hit(failpoint.RelayProducing)
	var answered atomic.Int64
	g.publisher.PublishTogether(ctx, batches, func(batch int, errs []error) {
		answered.Add(1)
		checkAnswers(errs, len(batches[batch]))
		g.deliver(c, places[batch], readAll(errs))
	})
	failpoint.Hit(failpoint.RelayProduced)
	if n := int(answered.Load()); n != len(batches) {
		panic(fmt.Sprintf("relay: the publisher answered %d times for %d batches: PublishTogether must answer once for each", n, len(batches)))
	}
}

// deliver gives each lane its answers for a partition.
func (g *gatherer) deliver(c *together, place int, errs []error) {
	well := true
	for _, err := range errs {
		if fault := FaultOf(err); fault != "" && fault != FaultRecord {
			well = false
		}
	}
	g.judge(c.spots[place].spot, g.env.now().Sub(c.began), well, true)
	parts := c.parts[place]
	g.answered(c, place)
	for _, p := range parts {
		n := len(p.events)
		p.ended(errs[:n:n])
		p.answer(errs[:n:n], c.began)
		errs = errs[n:]
	}
}

// answered says that a call has no more to do with a partition. What waited for that is sent with what else waits: when the call ends or
// is late, and at once if it is late already.
func (g *gatherer) answered(c *together, place int) {
	g.mu.Lock()
	s := c.spots[place]
	s.call = nil
	some := len(s.waiting) > 0
	if some {
		g.order = append(g.order, s)
	} else {
		delete(g.spots, s.spot)
	}
	g.mu.Unlock()
	if some && g.env.now().Sub(c.began) >= promptly {
		g.start()
	}
}

// answer gives a lane its answers.
func (p *portion) answer(errs []error, began time.Time) {
	p.lane.answered.put(answered{p.to, p.events, errs, began, p.lane.r.env.now()})
}

// untilAll is a context that is done when those of all lanes are: a lane that is lost takes nothing from the others.
func untilAll(parts [][]*portion) (context.Context, context.CancelFunc) {
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

// nextGathered is how many partitions the next call may have, after one that was allowed most of them and took took. What shares a
// call waits for all of it.
func nextGathered(most int, took time.Duration) int {
	if took >= promptly/2 {
		return max(most/2, gatheredLeast)
	}
	return min(most+most/4, gatheredMost)
}

// wide says whether more partitions than one waits for have something unacknowledged: then calls are shared.
func (l *lane) wide() bool {
	n := 0
	for _, d := range l.destinations {
		if d.idle() {
			continue
		}
		if n++; n > l.r.gather.from {
			return true
		}
	}
	return false
}

// gather gives what is queued to the gatherer, if the lane has enough for many partitions. Partitions in any trouble are left
// to calls of their own.
func (l *lane) gather(ctx context.Context, before int64, now time.Time) error {
	g := l.r.gather
	if g.publisher == nil || l.outage != nil || !l.wide() {
		return nil
	}
	if !l.leased() {
		return l.unrenewed()
	}
	var portions []*portion
	for _, d := range l.destinations {
		if len(d.queue) == 0 || d.call != nil || d.tries > 0 || d.most > 0 || !g.takes(d.spot) ||
			len(l.holds) > 0 && (l.holds[d.spot] != nil || l.holds[spot{d.topic, wholeTopic}] != nil) {
			continue
		}
		batch := l.batchOf(d, before)
		if len(batch) == 0 {
			continue
		}
		p := l.portion(ctx, d, batch, eventsOf(batch))
		d.begin(batch, nil, now, l.slowAfter())
		d.portion = p
		l.calls++
		l.gathered++
		portions = append(portions, p)
	}
	if len(portions) > 0 {
		g.add(portions)
	}
	return nil
}
