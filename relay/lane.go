package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
)

// lane is one lane while it is ours: from the claim until it is released or lost. One goroutine (run) publishes, parks
// and retries; another (read) is one page ahead of it. What a lane believes of the database is only what was committed:
// when a COMMIT fails or its outcome is unknown the lane is dropped, claimed again and loaded anew.
type lane struct {
	r      *Relay
	number int
	epoch  int64
	token  string
	reader logReader

	wake   chan struct{} // the poller has seen unread events
	chores atomic.Uint32 // what the poller has seen to be due: choreParked, choreScheduled
	chored chan struct{}
	stop   chan struct{} // closed: finish what is in hand, then leave
	lost   context.CancelCauseFunc

	mu         sync.Mutex
	cursor     cursor    // published up to here; save makes it durable
	saved      cursor    // what the database holds
	leaseUntil time.Time // by our monotonic clock, from before the statement that renewed it

	// Owned by run's goroutine. Invariant: parked[q] is the number of rows of q in the table, as last committed.
	parked map[queue]int
	rows   int // of all queues
	held   map[queue]bool
	topics map[string]*heldTopic
	heldAt time.Time // when held was last read
}

// heldTopic is a topic that is missing or not permitted: its events are parked, and one of them is tried now and then.
type heldTopic struct {
	tries  int
	nextAt time.Time
}

const (
	choreParked = 1 << iota
	choreScheduled
)

var (
	errLost     = errors.New("the lane is lost")
	errStopping = errors.New("the relay stops")
)

// run works the lane until stop is closed (nil), or until something makes what we know of it doubtful (an error). ctx is
// cancelled only when the lane is lost or the time to stop has run out.
func (l *lane) run(ctx context.Context) error {
	pages := make(chan page)
	failed := make(chan error, 1)
	readCtx, stopReading := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { failed <- l.read(readCtx, pages) })
	defer reading.Wait()
	defer stopReading()

	for {
		timer := l.choreTimer()
		var err error
		select {
		case <-l.stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case err = <-failed:
		case p := <-pages:
			err = l.turn(ctx, p)
		case <-l.chored:
			err = l.doChores(ctx)
		case <-timer:
			err = l.doChores(ctx)
		}
		if errors.Is(err, errStopping) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// read hands pages to run, one ahead of it, and sleeps while everything is read.
func (l *lane) read(ctx context.Context, pages chan<- page) error {
	for {
		p, err := l.reader.next(ctx)
		if err != nil {
			return err
		}
		if len(p.records) == 0 {
			l.r.poller.idle(l.number, p.after.done)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case pages <- p:
		}
	}
}

// turn publishes one page: load what it queues behind, decide, apply, until every event of it has a fate.
func (l *lane) turn(ctx context.Context, p page) error {
	items := make([]item, len(p.records))
	for i := range p.records {
		items[i] = item{queue: queue{p.records[i].Topic, p.records[i].Key}, replay: p.records[i].letter != 0}
	}
	fates := route(items, l.waiting())
	answers := make([]answer, len(items))
	began := time.Now()
	for tries := 0; ; {
		if err := l.publishPage(ctx, p.records, fates, answers); err != nil {
			return err
		}
		spill := l.r.c.SpillAfter >= 0 && time.Since(began) >= l.r.c.SpillAfter
		fault := decide(items, fates, answers, spill)
		if fault == "" {
			break
		}
		tries++
		if err := l.pause(ctx, fault, firstError(answers, fates, again), holdPolicy.Delay(tries, rand.Float64())); err != nil {
			return err
		}
	}
	return l.settle(ctx, p, fates, answers)
}

// publishPage sends the events without a fate, and notes the answers.
func (l *lane) publishPage(ctx context.Context, records []record, fates []fate, answers []answer) error {
	events := make([]holdfast.Event, 0, len(records))
	index := make([]int, 0, len(records))
	for i := range records {
		if fates[i] == undecided || fates[i] == again {
			events = append(events, records[i].Event)
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

// publish asks the publisher, as long as the lane is ours beyond doubt, and tells the observer what was acknowledged.
func (l *lane) publish(ctx context.Context, events []holdfast.Event) ([]answer, error) {
	if !l.leased() {
		return nil, fmt.Errorf("%w: no save has succeeded for half of the lease of %v", errLost, l.r.c.Lease)
	}
	errs := l.r.publisher.Publish(ctx, events)
	if len(errs) != len(events) {
		panic(fmt.Sprintf("relay: the publisher answered %d times for %d events: Publish must answer once for each", len(errs), len(events)))
	}
	answers := make([]answer, len(errs))
	all := true
	for i, err := range errs {
		if err != nil {
			all = false
			answers[i] = answer{fault: FaultOf(err), err: err}
		}
	}
	if told := l.r.c.Observer.OnPublished; told != nil {
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
			told(l.number, acknowledged)
		}
	}
	return answers, nil
}

// settle makes a page's fates come true: usually the cursor moves in memory and a later save makes it durable. Events
// that are parked, and replays that arrived, are written in one transaction with the cursor.
func (l *lane) settle(ctx context.Context, p page, fates []fate, answers []answer) error {
	var parks []parking
	var closed []int64
	for i, f := range fates {
		rec := &p.records[i]
		switch f {
		case published:
			if rec.letter != 0 {
				closed = append(closed, rec.letter)
			}
		default:
			parks = append(parks, parking{record: rec, fate: f, err: answers[i].err})
		}
	}
	if len(parks) == 0 && len(closed) == 0 {
		l.mu.Lock()
		l.cursor = p.after
		l.mu.Unlock()
		l.r.saver.note()
		return nil
	}
	for l.rows+len(parks) > l.r.c.MaxParked && len(parks) > 0 {
		l.r.c.Logger.Error("lane is held: too many events are parked", "lane", l.number, "parked", l.rows, "cap", l.r.c.MaxParked)
		if err := l.pause(ctx, FaultTopic, fmt.Errorf("%d events are parked, and %d more would be above the cap of %d", l.rows, len(parks), l.r.c.MaxParked), time.Second); err != nil {
			return err
		}
		l.chores.Or(choreParked)
		if err := l.doChores(ctx); err != nil {
			return err
		}
	}
	return l.park(ctx, p.after, parks, closed)
}

// pause holds the lane for a while. It returns errStopping when the relay stops meanwhile: what was not acknowledged is
// published by the next owner.
func (l *lane) pause(ctx context.Context, fault Fault, cause error, wait time.Duration) error {
	l.r.c.Logger.Warn("lane is held", "lane", l.number, "fault", string(fault), "wait", wait, "error", cause)
	if told := l.r.c.Observer.OnHeld; told != nil {
		told(l.number, fault, cause, wait)
	}
	timer := time.NewTimer(max(wait, 10*time.Millisecond))
	defer timer.Stop()
	select {
	case <-l.stop:
		return errStopping
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// waiting is what a page has to queue behind.
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

// leased says whether the lane is ours beyond doubt: the last renewal is less than half a lease old.
func (l *lane) leased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Before(l.leaseUntil.Add(-l.r.c.Lease / 2))
}

func (l *lane) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

func firstError(answers []answer, fates []fate, f fate) error {
	for i := range answers {
		if fates[i] == f && answers[i].err != nil {
			return answers[i].err
		}
	}
	return nil
}
