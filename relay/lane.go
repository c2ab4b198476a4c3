package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// lane is one lane while it is ours: from the claim until it is released or lost. It remembers only what was committed. When a
// COMMIT fails or its outcome is unknown, the lane is dropped, claimed again and loaded anew.
//
// It has four parts, each with its states and invariants where it is declared:
//
//   - ownership: the lane's row, how far it is published, and the lease. Shared with the saver.
//   - reader: reads the log, page by page (log.go). Its goroutine (read) is one page ahead.
//   - sending: the queues of the partitions, and the calls under way. Each call has a goroutine.
//   - room: what waits in the table parked, and what is held.
//
// One goroutine (run) has everything else, and the loop that loads, decides and applies. What happens next it asks sending, room and
// decide.go, which know no clock, context or database.
//
// An event's way: run takes a page (accept) and puts its events into the queue of their destination, a partition. It sends
// what is queued, one call for each destination at a time (dispatch, publish.go). With the answer (settle) an event is
// settled, or queued again, or it leaves: the next flush parks it (park.go). The cursor moves up to the first event that is
// neither (tracker.go). So a partition that answers late, or never, delays its own events and no others.
type lane struct {
	r *Relay
	ownership
	reader logReader

	producer publish.LaneProducer // of this claim; nil unless the publisher is a publish.LanePublisher

	wake      chan struct{}          // the poller has seen unread events
	emptyUpTo atomic.Pointer[string] // up to this moment it had seen none: set before wake
	tasks     atomic.Uint32          // what the poller or the lane has seen to be due: parkedDue, queueDue, scheduledDue
	tasksDue  chan struct{}
	stop      chan struct{} // closed: finish what is in progress, then leave

	// Owned by run's goroutine, from here on.
	tracker tracker
	blocked *page // it waits until its topic's partitions may change, see accept
	sending
	room
	failures int // lives of the lane before this one that ended with errors, with little time in between
}

func newLane(r *Relay, token string, leaseUntil time.Time) *lane {
	return &lane{
		r:         r,
		ownership: ownership{token: token, leaseUntil: leaseUntil},
		wake:      make(chan struct{}, 1),
		tasksDue:  make(chan struct{}, 1),
		stop:      make(chan struct{}),
		sending:   newSending(r),
		room:      newRoom(r.bounds.queues),
	}
}

const (
	parkedDue = 1 << iota // rows of parked events, which may be in memory
	queueDue              // rows of parked events, which are not
	scheduledDue
)

var errLost = errors.New("the lane is lost")

// errFenced is errLost by the answer of a statement that writes: another relay owns the lane now, so it wrote nothing.
var errFenced = fmt.Errorf("%w: another relay owns it, or the database was restarted", errLost)

// run works the lane until stop is closed (nil), or until our memory of it may be wrong (an error). ctx is cancelled only
// when the lane is lost or the time to stop has run out.
func (l *lane) run(ctx context.Context) error {
	l.applyPauses()
	if err := l.resumeReleased(ctx); err != nil {
		return err
	}
	pages, ahead := make(chan page), make(chan page)
	failed := make(chan error, 1)
	readCtx, stopReading := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { failed <- l.read(readCtx, pages, ahead) })
	defer reading.Wait()
	defer stopReading()
	defer l.giveBack()

	for {
		if err := l.turn(ctx); err != nil {
			return err
		}
		var take, overtake <-chan page
		if l.takesPages() {
			take = pages
		}
		if l.blocked == nil {
			overtake = ahead
		}
		timer, stopTimer := l.timer()
		var err error
		select {
		case <-l.stop:
			stopTimer()
			return l.finish(ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		case err = <-failed:
		case p := <-take:
			l.accept(p)
		case p := <-overtake:
			l.accept(p)
		case <-l.answered.some:
			err = l.settleAll(ctx)
		case <-l.tasksDue:
			err = l.runTasks(ctx)
		case <-timer:
			err = l.runTasks(ctx)
		}
		stopTimer()
		if err != nil {
			return err
		}
	}
}

// turn does what needs no waiting: hold what is slow, send what is queued, park what leaves.
func (l *lane) turn(ctx context.Context) error {
	l.applyPauses()
	for {
		if p := l.blocked; p != nil {
			l.accept(*p)
		}
		l.holdSlow()
		if err := l.dispatch(ctx, maxOrder); err != nil {
			return err
		}
		if err := l.flush(ctx, false); err != nil {
			return err
		}
		if err := l.endLeases(ctx); err != nil {
			return err
		}
		if l.blocked == nil || !l.mayRoute(*l.blocked) { // what it waited for may have left with that flush, and no answer will come for it
			return l.resumeHolds(ctx)
		}
	}
}

// read hands pages to run, one ahead of it, and waits while everything is read.
func (l *lane) read(ctx context.Context, pages, ahead chan<- page) error {
	for {
		p, err := l.readPage(ctx)
		if err != nil {
			return err
		}
		// An empty page is handed on to end its window. Otherwise the window's events would count as unread, and keep their
		// segment, until the next event of the lane comes.
		if !p.moves {
			l.met(p)
		} else if err := l.hand(ctx, p, pages, ahead); err != nil {
			return err
		}
		if p.last {
			l.r.poller.idle(l, p.after.done)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.wake:
				l.reader.skip(l.emptyUpTo.Swap(nil))
			}
		}
	}
}

// readPage reads the next page when the budget has room for one.
func (l *lane) readPage(ctx context.Context) (page, error) {
	if err := l.r.budget.take(ctx); err != nil {
		return page{}, err
	}
	ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	defer cancel()
	failpoint.Hit(failpoint.RelayReading)
	began := l.r.env.now()
	p, err := l.reader.next(ctx)
	if observe := l.r.c.Observer.OnRead; observe != nil && err == nil {
		observe(l.number, len(p.events), l.r.env.now().Sub(began))
	}
	p.readAt = began
	l.keep(&p)
	return p, err
}

// takesPages says whether another page may be read into memory. Two pages at a time keep every destination busy.
func (l *lane) takesPages() bool {
	return l.blocked == nil && (len(l.tracker.pages) == 0 || len(l.tracker.pages) < maxPages && l.tracker.events < 2*l.r.c.BatchSize)
}

// maxPages bounds the pages in memory, however small they are.
const maxPages = 1000

// full says whether the first unsettled event keeps pages from being read. A page that waits for a topic to get its
// partitions is no reason to hurry: the first call of a topic may take long.
func (l *lane) full() bool { return l.blocked == nil && !l.takesPages() }

// accept puts the events of a page into the queues of their destinations. Events that must wait for others leave instead.
func (l *lane) accept(p page) {
	if !l.mayRoute(p) {
		l.blocked = &p
		return
	}
	l.blocked, l.noisy = nil, p.noisy
	now := l.r.env.now()
	w, free := l.waiting(), l.nothingWaits()
	all := l.tracker.add(p)
	var route *topicRoute
	for i := range all {
		e := &all[i]
		if route == nil || route.topic != e.event.Topic {
			route = l.routeOf(e.event.Topic)
		}
		d := l.destinationOn(route, e.event)
		if !free {
			if disposition := w.disposition(e.item, d.spot); disposition != undecided {
				l.leave(e, disposition, nil)
				continue
			}
		}
		d.enqueue(e, now)
		if p.still {
			d.overtake(l.isNoisy)
		}
	}
	l.advance()
}

// giveBack ends the lane's share of the budget. What is in a call stays in memory, and counts, until that returns: another
// claim of the lane may have been read long before.
func (l *lane) giveBack() {
	for _, d := range l.destinations {
		for _, p := range d.call {
			p.part()
			d.reserved += p.kept
		}
		for _, p := range d.queue {
			l.tracker.freed += p.kept
		}
		d.call, d.queue = nil, nil
	}
	for _, d := range l.dormant {
		l.tracker.freed += d.kept
	}
	for _, p := range l.tracker.pages {
		l.tracker.freed += p.kept
	}
	if l.blocked != nil {
		l.tracker.freed += l.blocked.kept
	}
	l.tracker.pages, l.blocked, l.dormant = nil, nil, nil // a call under way has the lane
	l.free()
	l.r.calls.leave(l)
	l.r.noisyCalls.leave(l)
	l.answered.end(func(c answered) { l.r.budget.give(c.to.reserved) })
	l.r.notices.leave(l.number)
}

func (l *lane) free() {
	l.r.budget.give(l.tracker.freed)
	l.tracker.freed = 0
}

// advance moves the cursor in memory past what is settled. A later save makes it durable.
func (l *lane) advance() {
	c, moved := l.tracker.advance()
	l.free()
	if !moved {
		return
	}
	l.reached(c, l.passed())
	failpoint.Hit(failpoint.RelayMoved)
	l.r.saver.note()
}

// stale says that the lease has not been renewed for longer than the saver should take.
func (l *lane) stale() bool { return !l.renewed(l.r.c.Lease / 4) }

// leased says whether the lane is certainly ours: the last renewal is less than half a lease old.
func (l *lane) leased() bool { return l.renewed(l.r.c.Lease / 2) }

func (l *lane) unrenewed() error {
	return fmt.Errorf("%w: no save has succeeded for half of the lease of %v", errLost, l.r.c.Lease)
}

func (l *lane) renewed(age time.Duration) bool {
	return l.renewedWithin(age, l.r.c.Lease, l.r.env.now())
}

func (l *lane) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}
