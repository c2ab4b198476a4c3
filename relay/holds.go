package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/relay/publish"
)

// A topic or a partition that takes nothing is held: its events are parked, and one of them is tried now and then.
// Everything else goes on.

// hold is a topic or a partition that is held, or the broker that cannot be reached.
type hold struct {
	tries   int
	parked  int       // events that were parked for it
	at      time.Time // when it began; of the broker's outage, the last try
	nextAt  time.Time // when one event is tried
	probing bool      // one is being tried
	tried   int64     // the place of the last one: each has its turn, so that one which is always refused stops no other
	past    *int64    // the place of the last row that cannot be resumed
	passed  int       // parked, when it was found

	// It takes events again. Those that are parked are made due, many at a time; then the hold is over, unless the
	// partition answers late: its events pass through the table, a batch a call.
	takes    bool
	resuming bool
	late     bool

	paused bool // a topic that a person has paused: nothing of it is tried until it is resumed
}

var errUnanswered = errors.New("the partition does not answer")

// slowAfter is how long a partition may take to answer. One that takes longer is spoken of, and held as soon as it keeps
// pages from being read. A broker that has answered nothing for so long cannot be reached.
const slowAfter = time.Second

// promptly is how soon a partition answers that has no trouble. While none does so, the broker has more to do than it can:
// then events wait in the log, because to park them would be more work for the same broker.
const promptly = slowAfter / 4

// slowAfter is the lane's: ParkAfter may be shorter.
func (l *lane) slowAfter() time.Duration { return min(slowAfter, max(l.r.c.ParkAfter, 0)) }

// judge records what a call says about its destination and about the broker. A shared call cannot tell which of its partitions
// failed: none is held for it, and each is tried again in a call of its own.
func (l *lane) judge(d *destination, said summary, shared bool, now time.Time) {
	if said.answers {
		l.r.answers.Store(now.UnixNano())
		l.r.vitals.answered()
		if now.Sub(d.began) < promptly {
			l.r.prompt.Store(now.UnixNano())
		}
		if l.outage != nil {
			l.outage = nil
			l.r.back.Store(now.UnixNano())
			l.r.reachable()
		}
	}
	refused := !said.trouble.acknowledged()
	if !refused || shared || len(d.queue) == 0 {
		d.since, d.checkAt = time.Time{}, time.Time{}
		if len(d.queue) > 0 {
			d.since = now
			d.checkAt = now.Add(l.slowAfter())
		}
	}
	if !refused {
		d.tries, d.refused, d.told, d.retryAt = 0, false, false, time.Time{}
		if said.answers && l.holds[d.spot] == nil && now.Sub(d.began) < slowAfter {
			l.sayFlows(d.spot, now)
		}
		return
	}
	if shared {
		return
	}
	d.tries++
	d.refused = said.trouble.fault == publish.FaultPartition
	wait := l.retryDelay(d.tries)
	d.retryAt = now.Add(wait)
	if said.trouble.fault == publish.FaultBroker && !l.answeredSince(now.Add(-slowAfter)) {
		if l.outage == nil {
			l.outage = &hold{}
		}
		l.outage.tries++
		l.outage.at = now
		l.r.vitals.refused(said.trouble.err, now)
		wait = l.retryDelay(l.outage.tries)
		l.outage.nextAt = now.Add(wait)
		d.retryAt = time.Time{}
	}
	if len(d.queue) > 0 && l.holds[d.spot] == nil {
		l.sayHeld(d, said.trouble, wait)
	}
}

// retryDelay is how long to wait after so many tries that failed for a partition's or the broker's sake.
func (l *lane) retryDelay(tries int) time.Duration {
	return max(holdPolicy.Delay(tries, l.r.env.chance()), 10*time.Millisecond)
}

// probeDelay is how long to wait after so many events that were tried for what is held.
func (l *lane) probeDelay(tries int) time.Duration {
	return max(holdPolicy.Delay(tries+3, l.r.env.chance()), 200*time.Millisecond)
}

// answeredSince says whether any partition has answered since then, in whatever lane: the broker can be reached.
func (l *lane) answeredSince(then time.Time) bool { return l.r.answers.Load() >= then.UnixNano() }

// promptSince is answeredSince for answers that came promptly.
func (l *lane) promptSince(then time.Time) bool { return l.r.prompt.Load() >= then.UnixNano() }

func (l *lane) sayHeld(d *destination, a answer, wait time.Duration) {
	l.logHeld(d, a, wait)
	l.observeTried(d, a, wait)
}

func (l *lane) logHeld(d *destination, a answer, wait time.Duration) {
	if w, say := l.r.notices.waits(d.spot, l.number, len(d.queue)+len(d.call), a.err == errUnanswered, l.r.env.now()); say && l.r.mayLog("partition waits") {
		l.r.c.Logger.Warn("partition waits", "topic", d.topic, "partition", d.partition, "lane", l.number, "waited", w.waited, "lanes", w.lanes, "events", w.events, "fault", string(a.fault), "retry_in", wait, "error", a.err)
	}
}

// sayFlows says that a topic or a partition takes events again, once no lane waits for it any more.
func (l *lane) sayFlows(at spot, now time.Time) {
	w, say := l.r.notices.flows(at, l.number, now)
	switch {
	case !say:
	case at.partition == wholeTopic && !l.r.mayLog("topic back"), at.partition != wholeTopic && !l.r.mayLog("partition back"):
	case at.partition == wholeTopic:
		l.r.c.Logger.Info("topic back", "topic", at.topic, "lane", l.number, "waited", w.waited)
	default:
		l.r.c.Logger.Info("partition back", "topic", at.topic, "partition", at.partition, "lane", l.number, "waited", w.waited)
	}
}

// observeTried tells the observer that a destination took nothing, and when it is tried again.
func (l *lane) observeTried(d *destination, a answer, wait time.Duration) {
	l.observeHeld(Held{
		Lane:      l.number,
		Topic:     d.topic,
		Partition: d.partition,
		Fault:     a.fault,
		Err:       a.err,
		Wait:      wait,
	})
}

func (l *lane) observeHeld(h Held) {
	if observe := l.r.c.Observer.OnHeld; observe != nil {
		observe(h)
	}
}

// holdSlow holds the partitions that keep the cursor, or pages, waiting for too long. A partition that says nothing is
// slow only when another one answers meanwhile: otherwise it is the broker that cannot be reached. Before ParkAfter another
// one must answer promptly: otherwise all are slow. One that has answered, while the lane was busy, is not slow.
func (l *lane) holdSlow() {
	if l.r.c.ParkAfter < 0 {
		return
	}
	now := l.r.env.now()
	for _, d := range l.destinations {
		if !d.toBlame() || l.holds[d.spot] != nil || now.Before(d.checkAt) || l.answered.from(d) {
			continue
		}
		since := latest(d.since, time.Unix(0, l.r.back.Load())) // before, the broker was to blame, which was away
		if d.share != nil {
			at := l.r.shared.since(d.share)
			if at.IsZero() { // it waits for its turn
				at = now
			}
			since = latest(since, at)
		}
		waited := now.Sub(since)
		switch silent := (answer{fault: publish.FaultPartition, err: errUnanswered}); {
		case waited < slowAfter || d.tries > 0:
		case d.told:
			l.logHeld(d, silent, 0)
		default:
			d.told = true
			l.sayHeld(d, silent, 0)
		}
		d.checkAt = now.Add(max(l.slowAfter()/4, 10*time.Millisecond))
		if waited < l.slowAfter() || waited < l.r.c.ParkAfter && !l.full() {
			continue
		}
		others := l.promptSince
		if waited >= l.r.c.ParkAfter {
			others = l.answeredSince
		}
		if d.refused || others(since.Add(l.slowAfter()/2)) {
			l.holdPartition(d, waited, now)
		}
	}
}

// holdPartition parks what waits for a partition, and all later events of it.
func (l *lane) holdPartition(d *destination, waited time.Duration, now time.Time) {
	l.holds[d.spot] = &hold{at: now, nextAt: now.Add(l.slowAfter())}
	if w, say := l.r.notices.held(d.spot, l.number, len(d.queue)+len(d.call), now); say && l.r.mayLog("partition held") {
		l.r.c.Logger.Error("partition held: it answers late or not at all; its events wait, all others continue", "topic", d.topic, "partition", d.partition, "lane", l.number, "waited", waited, "lanes", w.lanes, "events", w.events)
	}
	l.observeHeld(Held{
		Lane:      l.number,
		Topic:     d.topic,
		Partition: d.partition,
		Fault:     publish.FaultPartition,
		Err:       errUnanswered,
		Wait:      l.slowAfter(),
	})
	for _, p := range d.call {
		if p.row == nil && p.state == queued {
			l.leave(p, partitionDown, nil)
		}
	}
	for _, p := range d.queue {
		l.hold(p, partitionDown)
	}
	d.queue = nil
	d.since, d.tries, d.retryAt = time.Time{}, 0, time.Time{}
}

// hold takes an event out of its destination's queue, for as long as its topic or partition is held.
func (l *lane) hold(p *pending, d disposition) {
	if p.row == nil {
		l.leave(p, d, nil)
		return
	}
	if p.probe != nil {
		l.drop(p)
		return
	}
	l.dormant = append(l.dormant, dormantRow{p, d})
}

// holdTopic parks what waits for a topic, and all its later events.
func (l *lane) holdTopic(topic string, err error, now time.Time) {
	at := spot{topic, wholeTopic}
	if l.holds[at] != nil {
		return
	}
	wait := l.probeDelay(1)
	l.holds[at] = &hold{tries: 1, at: now, nextAt: now.Add(wait)}
	if w, say := l.r.notices.held(at, l.number, 0, now); say && l.r.mayLog("topic held") {
		l.r.c.Logger.Error("topic held: it is missing or not permitted; create it or grant the rights, nothing is lost meanwhile", "topic", topic, "lane", l.number, "lanes", w.lanes, "error", err)
	}
	l.observeHeld(Held{
		Lane:      l.number,
		Topic:     topic,
		Partition: anyPartition,
		Fault:     publish.FaultTopic,
		Err:       err,
		Wait:      wait,
	})
	l.holdQueued(topic)
}

// holdQueued takes what is queued of a topic that is held out of the queues.
func (l *lane) holdQueued(topic string) {
	for _, d := range l.destinations {
		if d.topic != topic {
			continue
		}
		for _, p := range d.queue {
			l.hold(p, topicHeld)
		}
		d.queue = nil
		if d.call == nil {
			d.since = time.Time{}
		}
	}
}

// drop takes a parked event out of memory. Its row stays.
func (l *lane) drop(p *pending) {
	l.tried(p)
	if p.probe != nil {
		p.probe.probing = false
	}
}

// afterCall ends the holds that a call shows to be over, or waits longer before the next try.
func (l *lane) afterCall(d *destination, batch []*pending, all []answer, said summary, now time.Time) {
	topic, partition := l.holds[spot{d.topic, wholeTopic}], l.holds[d.spot]
	if h := topic; h != nil {
		switch {
		case h.paused:
			h.probing = false
		case said.topic != nil:
			l.again(h, d, answer{publish.FaultTopic, said.topic}, now)
		case said.answers, said.trouble.fault == publish.FaultPartition: // Who says that of a partition has found its topic.
			h.resume(false)
		case h.probing:
			h.probing, h.nextAt = false, now.Add(l.slowAfter())
		}
	}
	if h := partition; h != nil {
		switch {
		case said.answers:
			h.resume(now.Sub(d.began) >= l.slowAfter())
			h.nextAt = now.Add(l.slowAfter())
		case !said.trouble.acknowledged():
			l.again(h, d, answer{publish.FaultPartition, said.trouble.err}, now)
		default:
			h.probing = false
		}
	}
	for i, p := range batch { // its topic has got other partitions since it was parked
		if h := p.probe; h == nil || h == topic || h == partition {
			continue
		} else if all[i].acknowledged() || all[i].fault == publish.FaultRecord {
			h.resume(false)
		} else {
			l.again(h, d, all[i], now)
		}
	}
}

// resume begins to end a hold.
func (h *hold) resume(late bool) {
	if !h.takes {
		h.past = nil // what was held again since may lie before it
	}
	h.tries, h.probing, h.takes, h.resuming, h.late = 0, false, true, true, late
}

// resumeHolds makes events due that wait for what takes events again, some at a time.
func (l *lane) resumeHolds(ctx context.Context) error {
	for _, at := range l.heldSpots() {
		h := l.holds[at]
		if !h.resuming {
			continue
		}
		if err := l.resumeSome(ctx, h, at); err != nil {
			return fmt.Errorf("resume %s: %w", at, err)
		}
		switch {
		case h.resuming || h.late:
		case h.past != nil && h.parked != h.passed: // a replay may have gone before it
			h.past, h.resuming = nil, true
		default:
			delete(l.holds, at)
			l.sayFlows(at, l.r.env.now())
		}
	}
	return nil
}

// again waits longer before the next try of what is held, unless it has just begun.
func (l *lane) again(h *hold, d *destination, a answer, now time.Time) {
	if h.at.Equal(now) {
		return
	}
	h.tries++
	h.probing, h.takes, h.resuming = false, false, false
	wait := l.probeDelay(h.tries)
	h.nextAt = now.Add(wait)
	at := d.spot
	if a.fault == publish.FaultTopic {
		at.partition = wholeTopic
	}
	if w, say := l.r.notices.waits(at, l.number, h.parked, false, now); say && l.r.mayLog("still held") {
		l.r.c.Logger.Warn("still held", "topic", d.topic, "partition", d.partition, "lane", l.number, "waited", w.waited, "lanes", w.lanes, "events", w.events, "tries", h.tries, "retry_in", wait, "error", a.err)
	}
	l.observeTried(d, a, wait)
}

// mayProbe says whether one event may be tried for what is held, when it is time.
func (l *lane) mayProbe(at spot, h *hold) bool {
	d := l.destinationAt(at)
	return !h.probing && !h.resuming && !l.paused(at.topic) && (d == nil || d.idle())
}

// probe tries one event of each topic and partition that is held, when it is time.
func (l *lane) probe(ctx context.Context) error {
	now := l.r.env.now()
	for _, at := range l.heldSpots() {
		h := l.holds[at]
		if !l.mayProbe(at, h) || now.Before(h.nextAt) {
			continue
		}
		found, err := l.sendProbe(ctx, h, at)
		if err != nil {
			return fmt.Errorf("read what waits for %s: %w", at, err)
		}
		if !found { // what waits behind other events of its key is sent when its turn comes, and shows then whether it is back
			h.resume(false)
			l.r.notices.flows(at, l.number, now) // nobody is told that it is back
		}
	}
	return nil
}

// sendProbe queues one parked event of what is held. It is false if nothing that waits for that heads its queue.
func (l *lane) sendProbe(ctx context.Context, h *hold, at spot) (found bool, err error) {
	after := h.tried
	rows, err := l.readProbe(ctx, at, after)
	if err == nil && len(rows) == 0 {
		after = math.MinInt64
		rows, err = l.readProbe(ctx, at, after)
	}
	if err != nil && l.divides(err) {
		return true, l.unreadableProbe(ctx, h, at, after, err)
	}
	if err != nil {
		return false, err
	}
	if len(rows) == 0 {
		h.nextAt = l.r.env.now().Add(flushEvery)
		return l.queues.enters > 0 || len(l.dormant) > 0, nil // they are about to wait for it
	}
	p := l.pendingOf(&rows[0])
	if p.event.malformed != "" {
		l.leases.endOf(rowKeyOf(p))
		return true, l.giveUp(ctx, p)
	}
	h.tried = p.row.place
	if l.leases.has(rowKeyOf(p)) { // it waits to be sent already, or is about to wait for this
		h.nextAt = l.r.env.now().Add(l.probeDelay(0))
		return true, nil
	}
	p.probe, h.probing = h, true
	l.leases.begin(p)
	l.destinationOf(p.event).enqueue(p, l.r.env.now())
	return true, nil
}

func (l *lane) readProbe(ctx context.Context, at spot, after int64) ([]parkedEvent, error) {
	return l.readLeased(ctx, l.r.sql.In(readProbe), l.number, at.topic, at.partition, after)
}
