package franz

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

const (
	roundBytes = 16 << 20 // of one transaction, unless one batch is larger
	callRounds = 3        // transactions of full length that a call may wait for
	closeTime  = 5 * time.Second
)

// laneProducer is the producer of one lane under one claim. Calls that run at the same time share a transaction. One goroutine, run, makes
// the transactions, one after the other.
type laneProducer struct {
	k         *TransactionalPublisher
	id        string
	partition int // of the marks topic

	ctx context.Context // done when the producer is closed
	end context.CancelFunc

	mu      sync.Mutex
	waiting []*laneCall
	busy    bool // run is there
	closed  bool
	idle    sync.WaitGroup // until run has ended
	ledger  *ledger

	// Owned by run, and by Close when it has ended.
	owner  *owner // nil while we are not known to be the only producer of the lane
	marked int    // events of the last mark
}

// laneCall is what one call of Publish has.
type laneCall struct {
	ctx      context.Context
	deadline time.Time
	queues   []*queue
	failures int           // transactions of it that failed for no partition's fault
	ended    chan struct{} // closed when nothing of it is left
}

// Publish publishes events in a transaction, with what other calls have: publish.LaneProducer. A transaction in which a record is refused, or
// a partition fails, is aborted, and the others are published in another.
func (l *laneProducer) Publish(ctx context.Context, events []holdfast.Event) []error {
	answers := make([]error, len(events))
	c := &laneCall{
		ctx:      ctx,
		deadline: time.Now().Add(callRounds * l.k.config.ProduceTimeout),
		ended:    make(chan struct{}),
	}
	c.queues = l.k.router().route(ctx, events, answers)
	for _, q := range c.queues {
		q.renew(ctx, &l.k.topics)
	}
	if len(c.queues) == 0 {
		return answers
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		c.abandon(errClosed)
		return answers
	}
	l.waiting = append(l.waiting, c)
	if !l.busy {
		l.busy = true
		l.idle.Go(l.run)
	}
	l.mu.Unlock()
	<-c.ended
	return answers
}

// Settled takes in what the relay will not publish again: publish.LaneProducer.
func (l *laneProducer) Settled(events []publish.EventName, readAt time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ledger.settled(events, readAt)
}

// Close ends the producer: publish.LaneProducer. If much of the last mark is settled it writes another, so that the next owner has less of
// it to remember.
func (l *laneProducer) Close() {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.idle.Wait()
	if closed {
		return
	}
	l.lastMark()
	l.disown()
}

// run makes transactions until no call waits.
func (l *laneProducer) run() {
	var calls []*laneCall
	for {
		calls = l.take(calls)
		if len(calls) > 0 && l.k.config.Linger > 0 {
			l.pause(l.k.config.Linger)
			calls = l.take(calls)
		}
		if len(calls) == 0 {
			return
		}
		l.round(calls)
		calls = slices.DeleteFunc(calls, func(c *laneCall) bool {
			if c.left() {
				return false
			}
			close(c.ended)
			return true
		})
	}
}

// take adds the calls that wait. Without any, run ends.
func (l *laneProducer) take(calls []*laneCall) []*laneCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls, l.waiting = append(calls, l.waiting...), nil
	l.busy = len(calls) > 0
	return calls
}

func (l *laneProducer) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.ctx.Done():
	case <-timer.C:
	}
}

// round makes one transaction of what the calls have.
func (l *laneProducer) round(calls []*laneCall) {
	for _, c := range calls {
		switch {
		case l.ctx.Err() != nil:
			c.abandon(errClosed)
		case c.ctx.Err() != nil:
			c.abandon(c.ctx.Err())
		case time.Now().After(c.deadline):
			c.abandon(kerr.RequestTimedOut)
		}
	}
	if calls = slices.DeleteFunc(slices.Clone(calls), func(c *laneCall) bool { return !c.left() }); len(calls) == 0 {
		return
	}
	if err := l.own(); err != nil {
		for _, c := range calls {
			c.abandon(err)
		}
		return
	}
	l.skipReported(calls)
	if parts := l.parts(calls); len(parts) > 0 {
		l.transact(parts)
	}
}

// skipReported answers for events that are in Kafka.
func (l *laneProducer) skipReported(calls []*laneCall) {
	if n := l.dropReported(calls); n > 0 && l.k.config.OnSkipped != nil {
		l.k.config.OnSkipped(l.partition, n)
	}
}

// dropReported takes out the events that are in Kafka, and counts them.
func (l *laneProducer) dropReported(calls []*laneCall) (dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ledger.skip) == 0 {
		return 0
	}
	for _, c := range calls {
		for _, q := range c.queues {
			q.Drop(func(e *holdfast.Event) bool {
				reported := l.ledger.reported(hashOf(publish.EventNameOf(e)))
				if reported {
					dropped++
				}
				return reported
			})
		}
	}
	return dropped
}

// lanePart is a batch of one partition of a call.
type lanePart struct {
	*queue
	call   *laneCall
	batch  []int32
	hashes []eventHash
}

// parts takes the next batch of every partition of the calls, as many as one transaction may have.
func (l *laneProducer) parts(calls []*laneCall) (parts []*lanePart) {
	size := 0
	taken := map[place]bool{} // and whether by a queue that shares with no other
	for _, c := range calls {
		for _, q := range c.queues {
			if len(q.Runs) > 0 && q.info.leaders[q.Partition] < 0 {
				q.Abandon(nil, notSent(q.place(), kerr.LeaderNotAvailable))
				l.k.topics.expire(q.place())
				continue
			}
			if alone, shared := taken[q.place()]; size >= roundBytes || shared && (alone || q.alone) {
				continue
			}
			batch := q.Next()
			if len(batch) == 0 {
				continue
			}
			size += q.SizeOf(batch)
			taken[q.place()] = q.alone
			p := &lanePart{queue: q, call: c, batch: batch, hashes: make([]eventHash, len(batch))}
			for n, i := range batch {
				p.hashes[n] = hashOf(publish.EventNameOf(&q.Events[i]))
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// again puts a part back, to be sent in the next transaction.
func (p *lanePart) again() { p.Runs = append(p.Runs, p.batch) }

// left says whether anything of a call is to be sent.
func (c *laneCall) left() bool {
	return slices.ContainsFunc(c.queues, func(q *queue) bool { return len(q.Runs) > 0 })
}

// abandon answers for what is left of a call.
func (c *laneCall) abandon(err error) {
	for _, q := range c.queues {
		if len(q.Runs) > 0 {
			e := notSent(q.place(), err)
			e.Fault = publish.FaultBroker
			q.Abandon(nil, e)
		}
	}
}
