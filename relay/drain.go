package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/relay/publish"
)

const (
	drainBytes = 1 << 20 // of parked events, that one statement reads at most
	drainLeast = 64 << 10
	heldEvery  = time.Second // how often it is read which keys dead letters hold
)

// parkedEvent is a row of the table of parked events.
type parkedEvent struct {
	logEvent
	place    int64
	why      string
	attempts int
}

// rowKey is a queue of parked events, or one that has no key and waits alone.
type rowKey struct {
	queue
	place int64 // 0 for a queue
}

func rowKeyOf(p *pending) rowKey { return rowKeyAt(p.item.queue, p.row.place) }

func rowKeyAt(q queue, place int64) rowKey {
	if q.ordered() {
		place = 0
	}
	return rowKey{q, place}
}

// pendingOf is a parked event as the lane sends it.
func (l *lane) pendingOf(row *parkedEvent) *pending {
	return &pending{
		event: &row.logEvent,
		item:  item{queue: queue{row.Topic, row.Key}},
		row:   &parkedRow{place: row.place, attempts: row.attempts},
	}
}

// tried has a parked event leave memory.
func (l *lane) tried(p *pending) {
	l.leases.end(p)
	l.tracker.freed += p.kept
	p.kept = 0
}

// runTasks does what is due besides reading the log: held keys that a person released, held topics and partitions, parked
// events and scheduled events.
func (l *lane) runTasks(ctx context.Context) error {
	due := l.tasks.Swap(0)
	if len(l.queues.held) > 0 && l.r.env.now().Sub(l.heldAt) >= heldEvery {
		if err := l.lookAtHeld(ctx); err != nil {
			return err
		}
	}
	if err := l.probe(ctx); err != nil {
		return err
	}
	if l.due.hear(due); l.due.take(l.r.env.now()) {
		if err := l.loadDue(ctx); err != nil {
			return err
		}
	}
	if err := l.lookAtWhole(ctx); err != nil {
		return err
	}
	if err := l.retryStuck(ctx); err != nil {
		return err
	}
	if err := l.resumeReleased(ctx); err != nil {
		return err
	}
	if l.moving = l.moving || due&scheduledDue != 0; l.moving && !l.r.env.now().Before(l.moveAt) {
		l.moving = false
		return l.moveScheduled(ctx)
	}
	return nil
}

// drainBound is how many bytes one statement reads. A lane has three times as many in memory at most, until the last of them is
// tried: all lanes together three eighths of the budget, beside it, or 192 KiB each if that is more.
func drainBound(budget int64, lanes int) int {
	return int(min(max(budget/8/int64(max(lanes, 1)), drainLeast), drainBytes))
}

// loadDue reads parked heads that are due, with what waits for them, into the queues of their destinations.
func (l *lane) loadDue(ctx context.Context) error {
	bound := drainBound(l.r.c.MemoryBudget, l.r.lanesOwned())
	if l.leases.events >= l.r.bounds.drainEvents || l.leases.bytes >= 2*bound || l.outage != nil && l.anyQueued() || l.stopping() {
		l.due.full()
		return nil
	}
	rows, err := l.readDue(ctx, l.leases.keys(), bound)
	if err != nil {
		return fmt.Errorf("read parked events: %w", err)
	}
	now := l.r.env.now()
	if l.due.looked(len(rows), l.leases.events, now); len(rows) == 0 {
		return l.forgetKeyless(ctx)
	}
	asleep, begun := map[queue]bool{}, map[queue]bool{}
	for i := range rows {
		p := l.pendingOf(&rows[i])
		if q := p.item.queue; q.ordered() {
			follows := begun[q]
			if asleep[q] {
				continue // it waits for its head
			}
			if follows && l.queues.held[q] && p.event.letter == 0 {
				asleep[q] = true // a letter may stand between it and its head: it is made due when no letter holds it
				continue
			}
			begun[q] = true
			if asleep[q] = p.event.malformed != ""; asleep[q] && follows {
				continue // it is given up when it heads its queue
			}
		}
		if p.event.malformed != "" {
			if err := l.giveUp(ctx, p); err != nil {
				return err
			}
			continue
		}
		d := l.destinationOf(p.event)
		l.leases.begin(p)
		if h := l.holds[d.spot]; h != nil && !h.takes {
			p.to = d
			asleep[p.item.queue] = true
			l.dormant = append(l.dormant, dormantRow{p, partitionDown})
			continue
		}
		d.enqueue(p, now)
	}
	for i := range rows {
		l.leases.endUnlessHas(rows[i].rowKey())
	}
	l.tasks.Or(queueDue) // there may be more
	signal(l.tasksDue)
	return nil
}

// writeTogether writes what became of parked events in one transaction, and changes the lane's memory after its COMMIT. The
// queues that go on are made due in that transaction, or added to later if it is given.
func (l *lane) writeTogether(ctx context.Context, events []*pending, answers []answer, outcomes []outcome, later *rowKeys) error {
	var gone, delayed rowKeys
	var asleep heldRows
	var closed []int64
	var resume rowKeys // queues whose head has left, so the next one is due
	var emptied []queue
	var adds []int32
	var texts []string
	var delays []float64
	letters := map[int]int64{}
	written := 0
	for i := range events {
		if outcomes[i] != untouched {
			written++
		}
	}
	if written == 0 {
		return nil
	}
	err := l.inTx(ctx, func(batch *pgx.Batch) {
		for i, p := range events {
			q := p.item.queue
			switch outcomes[i] {
			case acknowledged:
				gone.add(p)
				if p.event.letter != 0 {
					closed = append(closed, p.event.letter)
				}
				resume.addQueue(q)
			case retryLater:
				delayed.add(p)
				adds, texts = append(adds, 1), append(texts, errorText(answers[i].err))
				delays = append(delays, l.refusedDelay(p.row.attempts+1, answers[i].err).Seconds())
			case held:
				why := partitionDown
				if answers[i].fault == publish.FaultTopic {
					why = topicHeld
				}
				asleep.addRow(p, why)
			case dead:
				batch.Queue(l.r.sql.In(deadLetterParked), l.number, q.topic, q.key, p.row.place, 1, errorText(answers[i].err),
					reason(answers[i].err), fingerprint(p.event.Type, answers[i].err), l.r.c.HoldKey && q.ordered()).
					QueryRow(func(written pgx.Row) error {
						var id int64
						if err := written.Scan(&id); !errors.Is(err, pgx.ErrNoRows) {
							letters[i] = id
							return err
						}
						return nil
					})
				resume.addQueue(q) // a letter that holds the key does not hold a replay
			}
		}
		if len(gone.places) > 0 {
			batch.Queue(l.r.sql.In(deleteParked), l.number, gone.topics, gone.keys, gone.places)
		}
		if len(closed) > 0 {
			batch.Queue(l.r.sql.In(closeLetters), closed)
		}
		if later == nil && len(resume.topics) > 0 {
			l.resume(batch, resume, &emptied)
		}
		// Last: the row that is first now may be one of these, or a replay that came before it meanwhile.
		if len(delayed.places) > 0 {
			batch.Queue(l.r.sql.In(delayParked), l.number, delayed.topics, delayed.keys, delayed.places, adds, texts, delays)
		}
		if len(asleep.places) > 0 {
			batch.Queue(l.r.sql.In(holdParked), l.number, asleep.topics, asleep.keys, asleep.places, asleep.partitions)
		}
	}, func(batch *pgx.Batch) {
		for i, p := range events {
			switch outcomes[i] {
			case acknowledged:
				failpoint.Hit(failpoint.RelayUnparking)
			case retryLater, held:
				failpoint.Hit(failpoint.RelayDelaying)
			case dead:
				failpoint.Hit(failpoint.RelayDeadLettering)
			}
			l.queueLetter(batch, letters[i], p)
		}
	})
	if err != nil {
		return fmt.Errorf("write outcomes of parked events: %w", err)
	}
	if later != nil {
		for i := range resume.topics {
			later.addQueue(queue{resume.topics[i], resume.keys[i]})
		}
	}
	l.queues.forget(emptied)
	for i, p := range events {
		q := p.item.queue
		if outcomes[i] != dead {
			l.changes[outcomes[i]]++
		}
		switch outcomes[i] {
		case acknowledged:
			failpoint.Hit(failpoint.RelayUnparked)
			l.settledParked(p)
			if observe := l.r.c.Observer.OnResumed; observe != nil {
				observe(l.number, p.event.Event)
			}
		case dead:
			failpoint.Hit(failpoint.RelayDeadLettered)
			if letters[i] == 0 {
				break // a person has done something else with it
			}
			l.changes[dead]++
			if l.r.c.HoldKey && q.ordered() {
				l.queues.held[q] = true
			}
			if l.r.mayLog("event given up") {
				l.r.c.Logger.Error("event given up", "lane", l.number, "topic", q.topic, "event_id", p.event.ID, "type", p.event.Type, "attempts", p.row.attempts+1, "error", answers[i].err)
			}
			if observe := l.r.c.Observer.OnDead; observe != nil {
				observe(DeadLettered{
					Lane:   l.number,
					Event:  p.event.Event,
					Letter: letters[i],
					Err:    answers[i].err,
				})
			}
		default:
			continue
		}
		if l.dueBehind(q) {
			l.tasks.Or(queueDue)
		}
	}
	if l.tasks.Load() != 0 {
		signal(l.tasksDue)
	}
	return nil
}

// lookAtHeld finds the held keys whose dead letter a person has replayed or discarded, and releases them.
func (l *lane) lookAtHeld(ctx context.Context) error {
	held, err := l.r.readHeld(ctx, l.number)
	if err != nil {
		return err
	}
	var resume rowKeys
	for q := range l.queues.held {
		if !held[q] && l.queues.mayHaveRows(q) {
			resume.addQueue(q)
		}
	}
	l.queues.held, l.heldAt = held, l.r.env.now() // before the resumption: a head that it gives up holds its key anew
	if len(resume.topics) == 0 {
		return nil
	}
	if err := l.resumeHeads(ctx, resume, func() { failpoint.Hit(failpoint.RelayReleasing) }); err != nil {
		return fmt.Errorf("resume released keys: %w", err)
	}
	failpoint.Hit(failpoint.RelayReleased)
	return nil
}

// rowKey is rowKeyOf of a row.
func (p *parkedEvent) rowKey() rowKey { return rowKeyAt(queue{p.Topic, p.Key}, p.place) }

func collectParked(rows pgx.Rows) ([]parkedEvent, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (parkedEvent, error) {
		var p parkedEvent
		var headers, malformed *string
		var at pgtype.Timestamptz
		err := row.Scan(&p.place, &p.Topic, &p.Key, &p.why, &p.attempts, &p.ID, &p.Source, &p.Type, &at, &headers, &p.Payload, &p.letter, &malformed)
		p.Time = momentOf(at)
		p.examine([]byte(text(headers)), text(malformed))
		return p, err
	})
}
