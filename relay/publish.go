package relay

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

const (
	callBytes = 4 << 20 // of one call of the publisher, unless one event is larger
	maxCalls  = 64      // of a lane, besides those that take so long that their partition is slow
	maxOrder  = math.MaxInt64
)

// answers are the calls that have returned, for run to look at.
type answers struct {
	mu   sync.Mutex
	all  []answered
	some chan struct{}    // signalled when there are any
	late func(c answered) // the lane has ended: takes what returns
}

// answered is one call that has returned.
type answered struct {
	to     *destination
	events []holdfast.Event
	errs   []error
	began  time.Time // of a call that was shared; zero for one of the destination's own
	at     time.Time // when it returned: the lane may be busy, and take it later
}

func (a *answers) put(c answered) {
	a.mu.Lock()
	late := a.late
	if late == nil {
		a.all = append(a.all, c)
	}
	a.mu.Unlock()
	if late != nil {
		late(c)
		return
	}
	signal(a.some)
}

// end gives to late what nobody has taken, and every call that returns from now on.
func (a *answers) end(late func(c answered)) {
	a.mu.Lock()
	all := a.all
	a.all, a.late = nil, late
	a.mu.Unlock()
	for _, c := range all {
		late(c)
	}
}

// from says whether a call of a destination has returned that nobody has taken.
func (a *answers) from(d *destination) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.all, func(c answered) bool { return c.to == d })
}

func (a *answers) take() []answered {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	return all
}

// dispatch starts a call for every destination that has something to send and no call under way. Only events of the log
// before an order are sent, which a lane that stops sets. While the broker cannot be reached one call at a time finds out
// whether that is over.
func (l *lane) dispatch(ctx context.Context, before int64) error {
	now := l.r.env.now()
	refused, refusedNoisy := false, false
	defer func() { l.waitForTurn(refused, refusedNoisy) }()
	l.freeSlow(now)
	if l.outage != nil && (l.calls > 0 || now.Before(l.outage.nextAt)) {
		return nil
	}
	if err := l.giveShares(ctx, before, now); err != nil {
		return err
	}
	slots, n := l.slots(now), len(l.destinations)
	for i := 0; i < n && slots > 0; i++ {
		d := l.destinations[(l.next+i)%n]
		if len(d.queue) == 0 || d.call != nil || now.Before(d.retryAt) {
			continue
		}
		if !l.leased() {
			return l.unrenewed()
		}
		noisy := l.isNoisy(d.queue[0])
		var slot *callSlot
		if !noisy || !refusedNoisy {
			slot = l.slotFor(noisy)
		}
		if slot == nil && noisy {
			refusedNoisy = true
			d.awaitTurn(now)
			continue
		}
		if refused = slot == nil; refused {
			break
		}
		batch := l.batchOf(d, before)
		if len(batch) == 0 {
			slot.give()
			continue
		}
		l.call(ctx, d, batch, slot)
		slots--
		if l.outage != nil {
			break
		}
	}
	if n > 0 {
		l.next = (l.next + 1) % n // every destination has its turn to be the first
	}
	return nil
}

// batchOf takes what a call is to send. Since an event was queued an earlier one of its key may have been refused, or its
// topic found missing: then it leaves instead.
func (l *lane) batchOf(d *destination, before int64) []*pending {
	if l.nothingWaits() && before == maxOrder {
		batch := d.take(l.mostOf(d), callBytes)
		if !slices.ContainsFunc(batch, func(p *pending) bool { return p.event.malformed != "" }) {
			return batch
		}
		d.putBack(batch)
	}
	w := l.waiting()
	kept := make([]*pending, 0, len(d.queue))
	for _, p := range d.queue {
		if before != maxOrder && (p.row != nil || p.order >= before) {
			continue
		}
		if p.row == nil {
			if disposition := w.disposition(p.item, d.spot); disposition != undecided || p.event.malformed != "" {
				l.leave(p, disposition, nil)
				continue
			}
		} else if l.paused(d.topic) {
			l.hold(p, topicHeld)
			continue
		}
		kept = append(kept, p)
	}
	d.queue = kept
	if d.idle() {
		d.since = time.Time{}
	}
	return d.take(l.mostOf(d), callBytes)
}

// call starts the publisher on a batch of one destination.
func (l *lane) call(ctx context.Context, d *destination, batch []*pending, slot *callSlot) {
	events := eventsOf(batch)
	d.begin(batch, slot, l.r.env.now(), l.slowAfter())
	l.started(false)
	if slot.slots == l.r.noisyCalls { // so few that the lane itself may be too late: it waits for Postgres, has ended, or is about to
		l.r.env.after(slowAfter, slot.give)
	}
	observed := l.observed(d, batch, events)
	l.r.env.call(l, func() {
		errs := l.publish(ctx, events, observed)
		slot.give()
		l.answered.put(answered{to: d, events: events, errs: errs, at: l.r.env.now()})
	})
}

// beginning tells the observer that a call begins: see Observer.OnPublish.
type beginning func(context.Context) (publishers context.Context, ended func([]error))

// observed is the beginning of a call of a batch of one destination.
func (l *lane) observed(d *destination, batch []*pending, events []holdfast.Event) beginning {
	observe := l.r.c.Observer.OnPublish
	if observe == nil {
		return func(ctx context.Context) (context.Context, func([]error)) { return ctx, func([]error) {} }
	}
	p := Publishing{
		Lane:      l.number,
		System:    l.r.system,
		Topic:     d.topic,
		Partition: d.partition,
		Events:    events,
		Attempts:  attemptsOf(batch),
	}
	return func(ctx context.Context) (context.Context, func([]error)) { return observe(ctx, p) }
}

// attemptsOf are the attempts of each event, with the one that is about to be made.
func attemptsOf(batch []*pending) []int {
	attempts := make([]int, len(batch))
	for i, p := range batch {
		attempts[i] = 1
		if p.row != nil {
			attempts[i] = p.row.attempts + 1
		}
	}
	return attempts
}

// eventsOf are the events of a batch that is put into a call.
func eventsOf(batch []*pending) []holdfast.Event {
	events := make([]holdfast.Event, len(batch))
	for i, p := range batch {
		p.inCall = true
		events[i] = p.event.Event
	}
	return events
}

// publish calls the publisher.
func (l *lane) publish(ctx context.Context, events []holdfast.Event, observed beginning) []error {
	if !l.leased() { // the process may have been frozen since dispatch
		return slices.Repeat([]error{errLost}, len(events))
	}
	failpoint.Hit(failpoint.RelayProducing)
	ctx, ended := observed(ctx)
	errs := foreign.Errors(l.publisher().Publish(ctx, events))
	ended(errs)
	failpoint.Hit(failpoint.RelayProduced)
	checkAnswers(errs, len(events))
	return errs
}

// checkAnswers panics if a publisher does not keep to its first promise.
func checkAnswers(errs []error, events int) {
	if len(errs) != events {
		panic(fmt.Sprintf("relay: the publisher answered %d times for %d events: it must answer once for each", len(errs), events))
	}
}

// settleAll takes in every call that has returned. After an error the lane ends.
func (l *lane) settleAll(ctx context.Context) error {
	for i, all := 0, l.answered.take(); i < len(all); i++ {
		if err := takenBy(all[i].errs); err != nil {
			for _, c := range all[i:] {
				l.answered.put(c) // for giveBack
			}
			return err
		}
		if err := l.settle(ctx, all[i]); err != nil {
			for _, c := range all[i+1:] {
				l.answered.put(c) // for giveBack
			}
			return err
		}
	}
	return nil
}

// settle decides what becomes of every event of a call.
func (l *lane) settle(ctx context.Context, c answered) error {
	d, now := c.to, l.r.env.now()
	batch := d.call
	shared := d.share != nil
	if shared {
		d.began, d.share = c.began, nil
	}
	d.excuse(now.Sub(c.at))
	d.call, d.slot = nil, nil
	l.returned(shared)
	all, acknowledged := make([]answer, len(batch)), int64(0)
	for i, err := range c.errs {
		batch[i].inCall = false
		if err == nil {
			acknowledged++
		} else {
			all[i] = answer{fault: publish.FaultOf(err), err: err}
		}
	}
	l.published.Add(acknowledged)
	l.observePublished(c, all)

	var log, parked call
	log.grow(len(batch))
	for i, p := range batch {
		if p.row == nil {
			log.add(p, all[i])
		} else {
			parked.add(p, all[i])
		}
	}
	back := l.settleLog(log, parked.failed(), now)
	for _, p := range log.events {
		if p.state == settled {
			l.tracker.drop(p)
		}
	}
	rows, err := l.settleParked(ctx, parked, now)
	d.putBack(append(back, rows...)) // after an error for giveBack
	if err != nil {
		return err
	}
	said := summarize(all)
	if !shared {
		l.r.shared.judge(d.spot, now.Sub(d.began), said.trouble.acknowledged(), false)
	}
	if !shared {
		d.most = nextMost(d.most, len(batch), l.r.c.BatchSize, now.Sub(d.began), said)
	}
	l.judge(d, said, shared, now)
	l.afterCall(d, batch, all, said, now)
	l.advance()
	return nil
}

// call is a part of a call: events and what was answered for them.
type call struct {
	events  []*pending
	items   []item
	answers []answer
}

// grow makes room for so many events.
func (c *call) grow(n int) {
	c.events, c.items, c.answers = make([]*pending, 0, n), make([]item, 0, n), make([]answer, 0, n)
}

func (c *call) add(p *pending, a answer) {
	c.events, c.items, c.answers = append(c.events, p), append(c.items, p.item), append(c.answers, a)
}

// failed are the queues of which an event was not acknowledged.
func (c *call) failed() map[queue]bool {
	failed := map[queue]bool{}
	for i, it := range c.items {
		if it.queue.ordered() && !c.answers[i].acknowledged() {
			failed[it.queue] = true
		}
	}
	return failed
}

// settleLog decides what becomes of events of the log, and returns those that are sent again. failed are the queues of which an earlier
// event of the call, parked meanwhile, was not acknowledged.
func (l *lane) settleLog(c call, failed map[queue]bool, now time.Time) (back []*pending) {
	dispositions := decide(c.items, c.answers)
	for i, p := range c.events {
		switch d := dispositions[i]; {
		case p.state == settled: // it is a dead letter: Postgres did not park it
		case d == published && p.event.letter != 0:
			l.leaveAs(p, published, nil) // its letter is closed with the cursor
		case d == published && p.state == leaving:
			l.stay(p)
		case d == published:
			p.to.release(p)
			p.state = settled
		case d == again && p.state == leaving:
		case d == again:
			back = append(back, p)
		default:
			if d == topicHeld {
				l.holdTopic(p.item.queue.topic, c.answers[i].err, now)
			}
			if d == recordRefused && failed[p.item.queue] {
				d = follows // it was not sent
			}
			l.leaveAs(p, d, c.answers[i].err)
		}
	}
	return back
}

// leaveAs makes an event leave, in another way if it was about to leave already.
func (l *lane) leaveAs(p *pending, d disposition, err error) {
	if p.state == leaving {
		l.stay(p) // its destination has released it
	}
	l.leave(p, d, err)
}

// settleParked writes the outcomes of parked events, and returns those that are sent again.
func (l *lane) settleParked(ctx context.Context, c call, now time.Time) (back []*pending, err error) {
	if len(c.events) == 0 {
		return nil, nil
	}
	tries, permanent := make([]retried, len(c.events)), make([]bool, len(c.events))
	for i, p := range c.events {
		tries[i] = retried{p.item.queue, p.row.attempts}
		permanent[i] = retry.IsPermanent(c.answers[i].err)
	}
	outcomes := decideRetried(tries, c.answers, permanent, l.r.c.Retry.Attempts)
	stays := map[queue]bool{}
	done := make([]*pending, 0, len(c.events))
	for i, p := range c.events {
		if outcomes[i] == held && c.answers[i].fault == publish.FaultPartition && l.r.c.ParkAfter < 0 && p.probe == nil {
			outcomes[i] = waits // no partition is held
		}
		if outcomes[i] == waits && (p.probe != nil || l.holds[p.to.spot] != nil) {
			outcomes[i] = held // it need not be sent: the probe of its partition will say when
		}
		if outcomes[i] == waits || outcomes[i] == untouched && stays[p.item.queue] {
			stays[p.item.queue] = true
			back = append(back, p)
			outcomes[i] = untouched
			continue
		}
		l.tried(p)
		done = append(done, p)
		if outcomes[i] != held {
			continue
		}
		if c.answers[i].fault == publish.FaultTopic {
			l.holdTopic(p.item.queue.topic, c.answers[i].err, now)
		} else if l.holds[p.to.spot] == nil && l.r.c.ParkAfter >= 0 {
			l.holdPartition(p.to, 0, now)
			l.holds[p.to.spot].tried = p.row.place
		}
		if p.probe != nil {
			outcomes[i] = untouched // its row waits already
		}
	}
	l.dropFollowers(c.events, outcomes, stays)
	err = l.writeOutcomes(ctx, c.events, c.answers, outcomes)
	for _, p := range done {
		l.tracker.drop(p)
	}
	return back, err
}

// dropFollowers takes the later parked events of a queue out of memory when an earlier one was not acknowledged: they are read
// again when that one has left the table.
func (l *lane) dropFollowers(events []*pending, outcomes []outcome, stays map[queue]bool) {
	stuck := map[queue]bool{}
	for i, p := range events {
		if outcomes[i] != acknowledged && p.item.queue.ordered() && !stays[p.item.queue] {
			stuck[p.item.queue] = true
		}
	}
	if len(stuck) == 0 {
		return
	}
	d := events[0].to
	d.queue = slices.DeleteFunc(d.queue, func(p *pending) bool {
		if p.row == nil || !stuck[p.item.queue] {
			return false
		}
		l.drop(p)
		return true
	})
}

func (l *lane) observePublished(c answered, all []answer) {
	observe := l.r.c.Observer.OnPublished
	if observe == nil {
		return
	}
	acknowledged := c.events
	for i := range all {
		if all[i].acknowledged() {
			continue
		}
		acknowledged = append([]holdfast.Event(nil), c.events[:i]...)
		for j := i + 1; j < len(all); j++ {
			if all[j].acknowledged() {
				acknowledged = append(acknowledged, c.events[j])
			}
		}
		break
	}
	if len(acknowledged) > 0 {
		observe(l.number, acknowledged)
	}
}

// finish ends a lane whose relay stops, so that little is published twice. What lies before an event that was sent is sent
// too; what cannot be is parked. Then the cursor is past everything that was published.
func (l *lane) finish(ctx context.Context) error {
	before := l.tracker.untouched()
	l.noisy = nil // nothing more overtakes what is sent now, and the time is short
	for {
		if err := l.flush(ctx, true); err != nil {
			return err
		}
		if l.outage == nil {
			if err := l.dispatch(ctx, before); err != nil {
				return err
			}
		} else {
			l.waitForTurn(false, false)
		}
		if l.quiet() {
			break
		}
		if err := l.r.env.await(ctx, l); err != nil {
			return err
		}
		if err := l.settleAll(ctx); err != nil {
			return err
		}
	}
	if l.r.c.ParkAfter >= 0 {
		for _, p := range l.tracker.queuedBefore(l.tracker.untouched()) { // of what takes no events now
			l.leave(p, partitionDown, nil)
		}
	}
	return l.flush(ctx, true)
}
