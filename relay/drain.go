package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/retry"
)

// How much of the parked events one round tries.
const (
	drainQueues = 50
	drainRows   = 100      // of one queue
	moveEvents  = 1000     // that fell due, in one transaction
	moveBytes   = 32 << 20 // of their payloads
	heldEvery   = time.Second
)

// parkedEvent is a row of the table of parked events.
type parkedEvent struct {
	logEvent
	place    int64
	why      string
	attempts int
}

// taskTimer fires when it is time to try a held topic, or to look at held keys.
func (l *lane) taskTimer() <-chan time.Time {
	at := l.tasksAt()
	if at.IsZero() {
		return nil
	}
	return time.After(at.Sub(l.r.env.now()))
}

// tasksAt is when taskTimer fires; zero for never.
func (l *lane) tasksAt() (at time.Time) {
	for _, t := range l.topics {
		if at.IsZero() || t.nextAt.Before(at) {
			at = t.nextAt
		}
	}
	if len(l.held) > 0 {
		if next := l.heldAt.Add(heldEvery); at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}

// runTasks does what is due besides reading the log: held keys that a person released, held topics, parked events and
// scheduled events.
func (l *lane) runTasks(ctx context.Context) error {
	due := l.tasks.Swap(0)
	if len(l.held) > 0 && l.r.env.now().Sub(l.heldAt) >= heldEvery {
		if err := l.lookAtHeld(ctx); err != nil {
			return err
		}
	}
	for _, topic := range l.heldTopicNames() {
		if t := l.topics[topic]; !l.r.env.now().Before(t.nextAt) {
			if err := l.tryTopic(ctx, topic, t); err != nil {
				return err
			}
		}
	}
	if due&parkedDue != 0 && !l.r.env.now().Before(l.drainAt) {
		if err := l.drain(ctx); err != nil {
			return err
		}
	}
	if due&scheduledDue != 0 {
		return l.moveScheduled(ctx)
	}
	return nil
}

// drain tries parked heads that are due, and what waits for them, until nothing more is due or nothing moves.
func (l *lane) drain(ctx context.Context) error {
	for !l.stopping() {
		rows, err := l.readParked(ctx, l.r.sql.In(readDue), l.number, l.heldTopicNames(), drainRows, drainQueues)
		if err != nil {
			return fmt.Errorf("read parked events: %w", err)
		}
		if len(rows) == 0 {
			return nil
		}
		moved, err := l.retryParked(ctx, rows)
		if err != nil {
			return err
		}
		if !moved {
			return nil
		}
	}
	return nil
}

// retryParked publishes parked events again and writes their outcomes. moved says that some have left the table.
func (l *lane) retryParked(ctx context.Context, rows []parkedEvent) (moved bool, err error) {
	events := make([]holdfast.Event, len(rows))
	tries := make([]retried, len(rows))
	for i := range rows {
		events[i] = rows[i].Event
		tries[i] = retried{queue{rows[i].Topic, rows[i].Key}, rows[i].attempts}
	}
	answers, err := l.publish(ctx, events)
	if err != nil {
		return false, err
	}
	if unreachable(answers) {
		// An outage is no event's fault: nothing is written, and the rows stay due.
		l.drainTries++
		l.drainAt = l.r.env.now().Add(max(holdPolicy.Delay(l.drainTries, l.r.env.chance()), 50*time.Millisecond))
		return false, nil
	}
	l.drainTries = 0
	permanent := make([]bool, len(rows))
	for i := range answers {
		permanent[i] = retry.IsPermanent(answers[i].err)
	}
	outcomes := decideRetried(tries, answers, permanent, l.r.c.Retry.Attempts)
	return l.writeOutcomes(ctx, rows, answers, outcomes)
}

func unreachable(answers []answer) bool {
	for _, a := range answers {
		if a.fault != FaultBroker {
			return false
		}
	}
	return true
}

// writeOutcomes writes outcomes in one transaction, and changes the lane's memory after its COMMIT.
func (l *lane) writeOutcomes(ctx context.Context, rows []parkedEvent, answers []answer, outcomes []outcome) (moved bool, err error) {
	var gone, delayed rowKeys
	var closed []int64
	var resume rowKeys // queues whose head has left, so the next one is due
	var adds []int32
	var texts []string
	var delays []float64
	letters := map[int]int64{}
	err = l.inTx(ctx, func(batch *pgx.Batch) {
		for i := range rows {
			row := &rows[i]
			q := queue{row.Topic, row.Key}
			switch outcomes[i] {
			case acknowledged:
				gone.add(row)
				if row.letter != 0 {
					closed = append(closed, row.letter)
				}
				resume.addQueue(q)
			case retryLater:
				add := 0
				delay := holdPolicy.Delay(5, 0.5+l.r.env.chance()/2)
				if answers[i].fault == FaultRecord {
					add = 1
					delay = l.refusedDelay(row.attempts+1, answers[i].err)
				}
				delayed.add(row)
				adds, texts, delays = append(adds, int32(add)), append(texts, errorText(answers[i].err)), append(delays, delay.Seconds())
			case dead:
				letters[i] = row.letter
				batch.Queue(l.r.sql.In(deadLetterParked), l.number, row.Topic, row.Key, row.place, 1, errorText(answers[i].err),
					reason(answers[i].err), fingerprint(row.Type, answers[i].err), l.r.c.HoldKey && q.ordered()).
					QueryRow(func(written pgx.Row) error {
						var id int64
						err := written.Scan(&id)
						if errors.Is(err, pgx.ErrNoRows) {
							return nil // a replay: its own letter is open again
						}
						letters[i] = id
						return err
					})
				if !l.r.c.HoldKey {
					resume.addQueue(q)
				}
			}
		}
		if len(gone.places) > 0 {
			batch.Queue(l.r.sql.In(deleteParked), l.number, gone.topics, gone.keys, gone.places)
		}
		if len(delayed.places) > 0 {
			batch.Queue(l.r.sql.In(delayParked), l.number, delayed.topics, delayed.keys, delayed.places, adds, texts, delays)
		}
		if len(closed) > 0 {
			batch.Queue(l.r.sql.In(closeLetters), closed)
		}
		// A queue whose head was delayed stays dormant: resuming touches only rows that wait at 'infinity'.
		resume.dropStuck(rows, outcomes)
		if len(resume.topics) > 0 {
			batch.Queue(l.r.sql.In(resumeQueues), l.number, resume.topics, resume.keys)
		}
	}, func(batch *pgx.Batch) {
		for i := range rows {
			switch outcomes[i] {
			case acknowledged:
				failpoint.Hit(failpoint.RelayUnparking)
			case retryLater:
				failpoint.Hit(failpoint.RelayDelaying)
			case dead:
				failpoint.Hit(failpoint.RelayDeadLettering)
			}
			topic := wire.LetterTopic(l.r.c.DeadLetterTopic, rows[i].Topic)
			if letters[i] != 0 && topic != "" {
				batch.Queue(l.r.sql.In(publishLetter), letters[i], topic).QueryRow(func(row pgx.Row) error {
					var refused *string
					err := row.Scan(&refused)
					if refused != nil {
						l.r.c.Logger.Warn("dead letter not published", "lane", l.number, "topic", rows[i].Topic, "event", rows[i].ID, "letter", letters[i], "error", *refused)
					}
					return err
				})
			}
		}
	})
	if err != nil {
		return false, fmt.Errorf("write outcomes of parked events: %w", err)
	}
	for i := range rows {
		q := queue{rows[i].Topic, rows[i].Key}
		switch outcomes[i] {
		case acknowledged:
			failpoint.Hit(failpoint.RelayUnparked)
			l.forget(q)
			moved = true
			if observe := l.r.c.Observer.OnUnparked; observe != nil {
				observe(Unparked{Lane: l.number, Event: rows[i].Event})
			}
		case dead:
			failpoint.Hit(failpoint.RelayDeadLettered)
			l.forget(q)
			moved = true
			if l.r.c.HoldKey && q.ordered() {
				l.held[q] = true
			}
			l.r.c.Logger.Error("event given up", "lane", l.number, "topic", q.topic, "event", rows[i].ID, "type", rows[i].Type, "attempts", rows[i].attempts+1, "error", answers[i].err)
			if observe := l.r.c.Observer.OnDead; observe != nil {
				observe(DeadLettered{Lane: l.number, Event: rows[i].Event, Letter: letters[i], Err: answers[i].err})
			}
		}
	}
	return moved, nil
}

// tryTopic publishes one event of a held topic. Once the topic takes the event, or refuses only its record, the hold ends
// and every queue of the topic drains by itself.
func (l *lane) tryTopic(ctx context.Context, topic string, t *heldTopic) error {
	rows, err := l.readParked(ctx, l.r.sql.In(readProbe), l.number, topic)
	if err != nil {
		return fmt.Errorf("read the held topic %s: %w", topic, err)
	}
	if len(rows) == 0 {
		delete(l.topics, topic)
		return nil
	}
	answers, err := l.publish(ctx, []holdfast.Event{rows[0].Event})
	if err != nil {
		return err
	}
	if answers[0].err != nil && answers[0].fault != FaultRecord {
		t.tries++
		wait := max(holdPolicy.Delay(t.tries+3, l.r.env.chance()), 200*time.Millisecond)
		t.nextAt = l.r.env.now().Add(wait)
		l.r.c.Logger.Warn("topic still held", "topic", topic, "lane", l.number, "tries", t.tries, "wait", wait, "error", answers[0].err)
		if observe := l.r.c.Observer.OnHeld; observe != nil {
			observe(Held{Lane: l.number, Fault: answers[0].fault, Err: answers[0].err, Wait: wait})
		}
		return nil
	}
	outcomes := decideRetried([]retried{{queue{topic, rows[0].Key}, rows[0].attempts}}, answers, []bool{retry.IsPermanent(answers[0].err)}, l.r.c.Retry.Attempts)
	if _, err := l.writeOutcomes(ctx, rows, answers, outcomes); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RelayAnswered)
	err = l.inTx(ctx, func(batch *pgx.Batch) { batch.Queue(l.r.sql.In(resumeTopic), l.number, topic) },
		func(*pgx.Batch) { failpoint.Hit(failpoint.RelayResuming) })
	if err != nil {
		return fmt.Errorf("resume the topic %s: %w", topic, err)
	}
	failpoint.Hit(failpoint.RelayResumed)
	delete(l.topics, topic)
	l.r.c.Logger.Info("topic back", "topic", topic, "lane", l.number)
	l.tasks.Or(parkedDue)
	return l.drain(ctx)
}

// lookAtHeld finds the held keys whose dead letter a person has replayed or discarded, and releases them.
func (l *lane) lookAtHeld(ctx context.Context) error {
	held, awaits, err := l.r.readHeld(ctx, l.number)
	if err != nil {
		return err
	}
	var resume rowKeys
	for q := range l.held {
		if !held[q] && l.parked[q] > 0 {
			resume.addQueue(q)
		}
	}
	if len(resume.topics) > 0 {
		err := l.inTx(ctx, func(batch *pgx.Batch) { batch.Queue(l.r.sql.In(resumeQueues), l.number, resume.topics, resume.keys) },
			func(*pgx.Batch) { failpoint.Hit(failpoint.RelayReleasing) })
		if err != nil {
			return fmt.Errorf("resume released keys: %w", err)
		}
		failpoint.Hit(failpoint.RelayReleased)
	}
	l.held, l.awaits, l.heldAt = held, awaits, l.r.env.now()
	return nil
}

// moveScheduled moves events that fell due into the log, under the lane's fence.
func (l *lane) moveScheduled(ctx context.Context) error {
	for !l.stopping() {
		var events, bytes int64
		err := l.inTx(ctx, func(batch *pgx.Batch) {
			batch.Queue(l.r.sql.In(moveScheduled), l.number, moveEvents, int64(moveBytes)).QueryRow(func(row pgx.Row) error { return row.Scan(&events, &bytes) })
		}, func(*pgx.Batch) {
			if events > 0 {
				failpoint.Hit(failpoint.RelayScheduling)
			}
		})
		if err != nil {
			return fmt.Errorf("move scheduled events: %w", err)
		}
		if events > 0 {
			failpoint.Hit(failpoint.RelayScheduled)
		}
		if observe := l.r.c.Observer.OnMoved; observe != nil && events > 0 {
			observe(Moved{Lane: l.number, Events: int(events)})
		}
		if events < moveEvents && bytes < moveBytes {
			break
		}
	}
	l.r.Wake()
	return nil
}

// forget counts one row of q less: it has left the table.
func (l *lane) forget(q queue) {
	l.rows--
	if l.parked[q]--; l.parked[q] <= 0 {
		delete(l.parked, q)
	}
}

func (l *lane) heldTopicNames() []string {
	names := make([]string, 0, len(l.topics))
	for topic := range l.topics {
		names = append(names, topic)
	}
	slices.Sort(names)
	return names
}

func (l *lane) readParked(ctx context.Context, statement string, args ...any) ([]parkedEvent, error) {
	ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	defer cancel()
	rows, err := l.r.pool.Query(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (parkedEvent, error) {
		var p parkedEvent
		var headers *string
		err := row.Scan(&p.place, &p.Topic, &p.Key, &p.why, &p.attempts, &p.ID, &p.Source, &p.Type, &p.Time, &headers, &p.Payload, &p.letter)
		if err == nil && headers != nil {
			err = parseHeaders([]byte(*headers), &p.Event)
		}
		return p, err
	})
}
