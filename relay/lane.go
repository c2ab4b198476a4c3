package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// lane is one lane while it is ours: from the claim until it is released or lost. One goroutine (run) publishes, parks
// and retries; another (read) is one page ahead of it. A lane remembers only what was committed. When a COMMIT fails or
// its outcome is unknown, the lane is dropped, claimed again and loaded anew.
type lane struct {
	r      *Relay
	number int
	epoch  int64
	token  string
	reader logReader

	wake     chan struct{} // the poller has seen unread events
	tasks    atomic.Uint32 // what the poller has seen to be due: parkedDue, scheduledDue
	tasksDue chan struct{}
	stop     chan struct{} // closed: finish what is in progress, then leave
	lost     context.CancelCauseFunc

	mu         sync.Mutex
	cursor     cursor    // published up to here; save makes it durable
	saved      cursor    // what the database holds
	leaseUntil time.Time // by our monotonic clock, from before the statement that renewed it

	// Owned by run's goroutine. Invariant: parked[q] is the number of rows of q in the table, as last committed.
	parked  map[queue]int
	rows    int // of all queues
	held    map[queue]bool
	awaits  bool // the replay of a letter that holds a key is in the log, ahead of us
	topics  map[string]*heldTopic
	heldAt  time.Time // when held was last read
	dormant bool      // at the claim some queue had no row that would ever fall due

	outages    map[spot]outage
	drainAt    time.Time // parked events are not tried before it: the broker could not be reached
	drainTries int

	openTransactions int         // our transactions that are open, or whose end is not recorded yet; guarded by the saver's mutex
	doubtful         atomic.Bool // a transaction of ours failed, or its COMMIT was not answered: our memory may be wrong
}

// heldTopic is a topic that is missing or not permitted. Its events are parked, and one of them is tried now and then.
type heldTopic struct {
	tries  int
	nextAt time.Time
}

// spot is a partition, and outage is since when it has been unavailable. Meanwhile its parked events are tried every few
// seconds, so a partition that has refused nothing for outageEnds is back.
type spot struct {
	topic     string
	partition int // -1 when the publisher does not say
}
type outage struct{ since, lastAt time.Time }

const outageEnds = 30 * time.Second

const (
	parkedDue = 1 << iota
	scheduledDue
)

var (
	errLost     = errors.New("the lane is lost")
	errStopping = errors.New("the relay stops")
)

// run works the lane until stop is closed (nil), or until our memory of it may be wrong (an error). ctx is cancelled only
// when the lane is lost or the time to stop has run out.
func (l *lane) run(ctx context.Context) error {
	if err := l.resumeReleased(ctx); err != nil {
		return err
	}
	pages := make(chan page)
	failed := make(chan error, 1)
	readCtx, stopReading := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { failed <- l.read(readCtx, pages) })
	defer reading.Wait()
	defer stopReading()

	for {
		timer := l.taskTimer()
		var err error
		select {
		case <-l.stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case err = <-failed:
		case p := <-pages:
			err = l.process(ctx, p)
		case <-l.tasksDue:
			err = l.runTasks(ctx)
		case <-timer:
			err = l.runTasks(ctx)
		}
		if errors.Is(err, errStopping) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// read hands pages to run, one ahead of it, and waits while everything is read.
func (l *lane) read(ctx context.Context, pages chan<- page) error {
	for {
		nextCtx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
		failpoint.Hit(failpoint.RelayReading)
		p, err := l.reader.next(nextCtx)
		cancel()
		if err != nil {
			return err
		}
		// An empty page is handed on to end its window. Otherwise the window's events would count as unread, and keep their
		// segment, until the next event of the lane comes.
		if p.moves {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case pages <- p:
			}
		}
		if p.last {
			l.r.poller.idle(l, p.after.done)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.wake:
			}
		}
	}
}

// process publishes one page: load what is parked, decide, apply, until every event of the page has a disposition.
func (l *lane) process(ctx context.Context, p page) error {
	items := make([]item, len(p.events))
	for i := range p.events {
		items[i] = item{queue: queue{p.events[i].Topic, p.events[i].Key}, replay: p.events[i].letter != 0}
	}
	dispositions := make([]disposition, len(items))
	answers := make([]answer, len(items))
	for done := false; !done; {
		route(items, dispositions, l.waiting())
		for tries := 0; ; {
			if err := l.publishPage(ctx, p.events, dispositions, answers); err != nil {
				return err
			}
			fault := decide(items, dispositions, answers)
			if fault == "" {
				break
			}
			tries++
			if err := l.pause(ctx, fault, firstError(answers, dispositions, again), holdPolicy.Delay(tries, l.r.env.chance())); err != nil {
				return err
			}
		}
		n, err := l.apply(ctx, p, dispositions, answers)
		if err != nil {
			return err
		}
		p.events, items, dispositions, answers = p.events[n:], items[n:], dispositions[n:], answers[n:]
		if done = len(p.events) == 0; !done {
			if err := l.waitForRoom(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishPage sends the events that have no disposition yet, and keeps the answers.
func (l *lane) publishPage(ctx context.Context, batch []logEvent, dispositions []disposition, answers []answer) error {
	events := make([]holdfast.Event, 0, len(batch))
	index := make([]int, 0, len(batch))
	for i := range batch {
		if dispositions[i] == undecided || dispositions[i] == again {
			events = append(events, batch[i].Event)
			index = append(index, i)
		}
	}
	if len(events) == 0 {
		return nil
	}
	got, err := l.publish(ctx, events)
	if err != nil {
		return err
	}
	for j, i := range index {
		answers[i] = got[j]
	}
	return nil
}

// publish calls the publisher, as long as the lane is certainly ours, and notifies the observer of what was acknowledged.
func (l *lane) publish(ctx context.Context, events []holdfast.Event) ([]answer, error) {
	if !l.leased() {
		return nil, fmt.Errorf("%w: no save has succeeded for half of the lease of %v", errLost, l.r.c.Lease)
	}
	failpoint.Hit(failpoint.RelayProducing)
	sent := l.r.env.now()
	errs := l.r.publisher.Publish(ctx, events)
	failpoint.Hit(failpoint.RelayProduced)
	if len(errs) != len(events) {
		panic(fmt.Sprintf("relay: the publisher answered %d times for %d events: Publish must answer once for each", len(errs), len(events)))
	}
	answers := make([]answer, len(errs))
	all := true
	for i, err := range errs {
		if err != nil {
			all = false
			answers[i] = answer{fault: FaultOf(err), err: err}
			if answers[i].fault == FaultPartition {
				answers[i].park = l.partitionDownFor(events[i].Topic, err, sent)
			}
		}
	}
	if observe := l.r.c.Observer.OnPublished; observe != nil {
		acknowledged := events
		if !all {
			acknowledged = nil
			for i := range events {
				if errs[i] == nil {
					acknowledged = append(acknowledged, events[i])
				}
			}
		}
		if len(acknowledged) > 0 {
			observe(Published{Lane: l.number, Events: acknowledged})
		}
	}
	return answers, nil
}

// apply carries out the dispositions of a page and returns for how many of its events: all, or as many as may be parked
// below the cap. Usually the cursor moves in memory and a later save makes it durable. Events that are parked, and
// replays that arrived, are written in one transaction with the cursor.
func (l *lane) apply(ctx context.Context, p page, dispositions []disposition, answers []answer) (n int, err error) {
	var parks []parking
	var closed []int64
	room := l.r.c.MaxParked - l.rows
	if l.awaits {
		// What waits for the held key waits for the replay, and the replay comes after this page: the cap would hold the lane
		// for ever.
		room = len(dispositions)
	}
	for ; n < len(dispositions); n++ {
		e := &p.events[n]
		switch {
		case dispositions[n] != published && len(parks) >= room:
		case dispositions[n] != published:
			parks = append(parks, parking{event: e, disposition: dispositions[n], err: answers[n].err})
			continue
		default:
			if e.letter != 0 {
				closed = append(closed, e.letter)
			}
			continue
		}
		break
	}
	after := p.after
	switch {
	case n == len(dispositions):
	case n == 0:
		return 0, nil
	default:
		after = p.window
		after.pos = p.events[n-1].seq
	}
	if len(parks) == 0 && len(closed) == 0 {
		l.mu.Lock()
		l.cursor = after
		l.mu.Unlock()
		failpoint.Hit(failpoint.RelayMoved)
		l.r.saver.note()
		return n, nil
	}
	return n, l.park(ctx, after, parks, closed)
}

// waitForRoom holds a lane that has parked as much as it may, and then tries what is parked. The rest of the page is
// routed again after that, because what it had to wait for may be gone.
func (l *lane) waitForRoom(ctx context.Context) error {
	l.r.c.Logger.Error("lane held: too many events are parked", "lane", l.number, "parked", l.rows, "cap", l.r.c.MaxParked)
	full := fmt.Errorf("%d events are parked, and the cap is %d", l.rows, l.r.c.MaxParked)
	if err := l.pause(ctx, FaultTopic, full, time.Second); err != nil {
		return err
	}
	l.tasks.Or(parkedDue)
	return l.runTasks(ctx)
}

// partitionDownFor records that a partition was unavailable for what was sent at some time. It says whether that has lasted
// so long that its events are parked.
func (l *lane) partitionDownFor(topic string, err error, sent time.Time) bool {
	at := spot{topic: topic, partition: -1}
	var publishErr *PublishError
	if errors.As(err, &publishErr) {
		at.partition = publishErr.Partition
	}
	now := l.r.env.now()
	out, known := l.outages[at]
	if !known || sent.Sub(out.lastAt) > outageEnds { // However long the refusal took.
		out.since = now
	}
	out.lastAt = now
	if l.outages == nil {
		l.outages = map[spot]outage{}
	}
	l.outages[at] = out
	return l.r.c.ParkAfter >= 0 && now.Sub(out.since) >= l.r.c.ParkAfter
}

// pause holds the lane for a while. It returns errStopping if the relay stops meanwhile: the next owner publishes what was
// not acknowledged.
func (l *lane) pause(ctx context.Context, fault Fault, cause error, wait time.Duration) error {
	l.r.c.Logger.Warn("lane held", "lane", l.number, "fault", string(fault), "wait", wait, "error", cause)
	if observe := l.r.c.Observer.OnHeld; observe != nil {
		observe(Held{Lane: l.number, Fault: fault, Err: cause, Wait: wait})
	}
	return l.r.env.wait(ctx, l.stop, max(wait, 10*time.Millisecond))
}

// waiting is what comes before the events of a page.
func (l *lane) waiting() waiting {
	w := waiting{queues: make(map[queue]bool, len(l.parked)+len(l.held)), topics: make(map[string]bool, len(l.topics))}
	for q := range l.parked {
		w.queues[q] = true
	}
	for q := range l.held {
		w.queues[q] = true
	}
	for topic := range l.topics {
		w.topics[topic] = true
	}
	return w
}

// stale says that the lease has not been renewed for longer than the saver should take.
func (l *lane) stale() bool { return !l.renewedWithin(l.r.c.Lease / 4) }

// leased says whether the lane is certainly ours: the last renewal is less than half a lease old.
func (l *lane) leased() bool { return l.renewedWithin(l.r.c.Lease / 2) }

func (l *lane) renewedWithin(age time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.env.now().Before(l.leaseUntil.Add(age - l.r.c.Lease))
}

func (l *lane) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

func firstError(answers []answer, dispositions []disposition, f disposition) error {
	for i := range answers {
		if dispositions[i] == f && answers[i].err != nil {
			return answers[i].err
		}
	}
	return nil
}
