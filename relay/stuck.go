package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// This file finds the one parked event for which a statement over many fails, and makes it a dead letter. If that is
// impossible, or nobody can say that the row is to blame, the row is stuck: it waits, and its queue with it. All others go on.

const stuckEvery = time.Minute // a stuck row is tried again

// stuckRow is a parked event that can be neither settled nor made a dead letter.
type stuckRow struct {
	*pending         // without payload and headers
	answer   answer  // what was said of it
	outcome  outcome // what is to be written; untouched: it is read again
	waits    *spot   // what its row waits for, although that takes events again; nil for nothing
	retryAt  time.Time
}

// waitsFor is what a row waits for whose outcome is held.
func (s stuckRow) waitsFor() spot {
	if s.answer.fault == publish.FaultTopic {
		return spot{s.to.topic, wholeTopic}
	}
	return s.to.spot
}

// change is a kind of change of a parked row: an outcome, or one of these.
const (
	holdResumed = int(untouched) + 1 + iota // it ceases to wait for its topic or partition
	headResumed                             // it is due, because what was before it in its queue has left
	kindsOfChange
)

// divides says whether to go on with fewer rows after an error. That of a server that may be busy counts only once the lane has failed twice
// before, and begun anew each time.
func (l *lane) divides(err error) bool {
	switch blameOf(err) {
	case aRow, damaged:
		return true
	case unclear:
		return raised(err) || l.failures >= 2
	}
	return false
}

// writeOutcomes writes what became of parked events. It changes outcomes to what was really written: an event whose row
// cannot be changed becomes a dead letter (dead), or is stuck (untouched).
func (l *lane) writeOutcomes(ctx context.Context, events []*pending, answers []answer, outcomes []outcome) error {
	for i, p := range events {
		if p.row.triedAt == 0 {
			p.row.triedAt = l.changes[outcomes[i]] + 1
		}
	}
	err := l.writeTogether(ctx, events, answers, outcomes, nil)
	if err == nil || !l.divides(err) {
		return err
	}
	ended := l.leases.ended // after all of them: else a command might change what is not written yet
	l.leases.ended = nil
	defer func() { l.leases.endUnlessHas(ended...) }() // those that it has are stuck
	var resume rowKeys
	var failed []failedWrite
	var write func(from, to int) error
	write = func(from, to int) error {
		err := l.writeTogether(ctx, events[from:to], answers[from:to], outcomes[from:to], &resume)
		switch {
		case err == nil || !l.divides(err):
			return err
		case to-from == 1:
			failed = append(failed, failedWrite{from, err})
			return nil
		}
		half := (from + to) / 2
		if err := write(from, half); err != nil {
			return err
		}
		return write(half, to)
	}
	if err := write(0, len(events)); err != nil { // the rows alone may be written: their queues go on apart
		return err
	}
	for _, f := range failed {
		if err := l.writeAlone(ctx, events[f.at], answers[f.at], &outcomes[f.at], &resume, f.err); err != nil {
			return err
		}
	}
	return l.resumeHeads(ctx, resume, func() {})
}

// failedWrite is an outcome that could not be written alone.
type failedWrite struct {
	at  int
	err error
}

// writeAlone gives an event up whose outcome cannot be written.
func (l *lane) writeAlone(ctx context.Context, p *pending, a answer, to *outcome, resume *rowKeys, err error) error {
	if blameOf(err) == unclear && !raised(err) {
		return p.placed(err)
	}
	if *to != acknowledged && *to != dead && l.blames(err, int(*to), p.row.triedAt-1) {
		why := answer{publish.FaultRecord, errMalformed(toValidText(errors.Join(err, a.err).Error()))}
		e := l.writeTogether(ctx, []*pending{p}, []answer{why}, []outcome{dead}, resume)
		if e == nil {
			*to = dead
			return nil
		}
		if !l.divides(e) {
			return e
		}
		err = fmt.Errorf("%w; and make it a dead letter: %w", err, e)
	}
	outcome := *to
	*to = untouched
	return l.stick(p, a, outcome, err)
}

// stick leaves a row alone for a while. It stays where it is, and what follows it waits.
func (l *lane) stick(p *pending, a answer, to outcome, err error) error {
	if len(l.stuck) >= l.r.bounds.drainEvents/2 {
		return fmt.Errorf("%d parked rows can be neither published nor made dead letters, the last is %w", len(l.stuck)+1, p.placed(err))
	}
	event := *p.event
	event.Payload, event.Headers = nil, nil
	p = &pending{event: &event, item: p.item, to: p.to, row: p.row}
	l.leases.begin(p)
	if to != acknowledged { // else a person would send it elsewhere, too
		l.leases.endOf(rowKeyOf(p))
	}
	l.stuck = append(l.stuck, stuckRow{
		pending: p,
		answer:  a,
		outcome: to,
		retryAt: l.r.env.now().Add(stuckEvery),
	})
	l.r.c.Logger.Error("waiting event stuck: it can be neither settled nor made a dead letter; its key waits, all others continue", "lane", l.number,
		"topic", p.item.queue.topic, "key", p.item.queue.key, "place", p.row.place, "event_id", event.ID, "type", event.Type, "retry_in", stuckEvery, "error", private.Text(err))
	return nil
}

// retryStuck tries rows again that were stuck.
func (l *lane) retryStuck(ctx context.Context) error {
	now := l.r.env.now()
	for len(l.stuck) > 0 && !now.Before(l.stuck[0].retryAt) {
		s := l.stuck[0]
		l.stuck = l.stuck[1:]
		l.tried(s.pending)
		if s.outcome == untouched || s.outcome == held && l.holds[s.waitsFor()] == nil { // what it was to wait for has come back meanwhile
			l.tasks.Or(queueDue)
			signal(l.tasksDue)
			var q rowKeys
			q.addQueue(s.item.queue)
			if err := l.resumeHeads(ctx, q, func() {}); err != nil {
				return err
			}
			if err := l.resumeStuck(ctx, s); err != nil {
				return err
			}
			continue
		}
		if err := l.writeOutcomes(ctx, []*pending{s.pending}, []answer{s.answer}, []outcome{s.outcome}); err != nil {
			return err
		}
	}
	return nil
}

// resumeStuck makes a row due that could not be when what it waits for took events again. What is held anew resumes it itself.
func (l *lane) resumeStuck(ctx context.Context, s stuckRow) error {
	if s.waits == nil || l.holds[*s.waits] != nil {
		return nil
	}
	at, before, since := *s.waits, s.row.place-1, l.changes[holdResumed]
	p, err := l.nameRow(ctx, nameWaiting, l.number, at.topic, at.partition, &before, false)
	if err != nil || p == nil || p.row.place != s.row.place {
		return err
	}
	err = l.inTx(ctx, func(batch *pgx.Batch) {
		batch.Queue(l.r.sql.In(resumeHeld), l.number, at.topic, at.partition, 1, &before)
	}, func(*pgx.Batch) {})
	if err == nil || !l.divides(err) {
		return err
	}
	return l.giveUpWaiting(ctx, p, at, since, err)
}

// giveUpWaiting is giveUpRow of a row that cannot be resumed.
func (l *lane) giveUpWaiting(ctx context.Context, p *pending, at spot, since uint64, err error) error {
	n := len(l.stuck)
	if err := l.giveUpRow(ctx, p, holdResumed, since, err); err != nil {
		return err
	}
	if len(l.stuck) > n {
		l.stuck[len(l.stuck)-1].waits = &at
	}
	return nil
}

// placed says for which row of the parked events an error is.
func (p *pending) placed(err error) error {
	return fmt.Errorf("the parked row with place %d of topic %q and key %q (id %q): %w", p.row.place, p.item.queue.topic, p.item.queue.key, p.event.ID, err)
}

// resume adds the statement that makes the heads of queues due. Once it has run, emptied has those of them that have no row.
func (l *lane) resume(batch *pgx.Batch, queues rowKeys, emptied *[]queue) {
	*emptied = nil
	batch.Queue(l.r.sql.In(resumeQueues), l.number, queues.topics, queues.keys).Query(func(rows pgx.Rows) error {
		var q queue
		_, err := pgx.ForEachRow(rows, []any{&q.topic, &q.key}, func() error { *emptied = append(*emptied, q); return nil })
		return err
	})
}

// resumeHeads makes the heads of queues due, unless dead letters hold them. A head that cannot be changed becomes a dead letter.
func (l *lane) resumeHeads(ctx context.Context, queues rowKeys, hit func()) error {
	_, err := l.resumeOrGiveUp(ctx, queues, hit)
	return err
}

// resumeOrGiveUp is resumeHeads. It says whether a head could not be changed.
func (l *lane) resumeOrGiveUp(ctx context.Context, queues rowKeys, hit func()) (gaveUp bool, _ error) {
	n := len(queues.topics)
	if n == 0 {
		return false, nil
	}
	since := l.changes[headResumed]
	var emptied []queue
	err := l.inTx(ctx, func(batch *pgx.Batch) { l.resume(batch, queues, &emptied) }, func(*pgx.Batch) { hit() })
	switch {
	case err == nil:
		l.queues.forget(emptied)
		l.changes[headResumed]++
		l.tasks.Or(queueDue)
		signal(l.tasksDue)
		return false, nil
	case !l.divides(err):
		return false, err
	case n > 1:
		for _, half := range []rowKeys{{topics: queues.topics[:n/2], keys: queues.keys[:n/2]}, {topics: queues.topics[n/2:], keys: queues.keys[n/2:]}} {
			some, err := l.resumeOrGiveUp(ctx, half, hit)
			if gaveUp = gaveUp || some; err != nil {
				return gaveUp, err
			}
		}
		return gaveUp, nil
	}
	if l.leases.has(rowKey{queue: queue{queues.topics[0], queues.keys[0]}}) {
		return false, nil // its head is in memory, or stuck
	}
	p, e := l.nameRow(ctx, nameHead, l.number, queues.topics[0], queues.keys[0], int64(math.MinInt64))
	if e != nil || p == nil {
		return false, e
	}
	return true, l.giveUpRow(ctx, p, headResumed, since, err)
}

// giveUpRow makes a dead letter of a row for which alone a statement has failed, if the row is to blame. Otherwise it is stuck.
func (l *lane) giveUpRow(ctx context.Context, p *pending, change int, since uint64, err error) error {
	switch {
	case blameOf(err) == unclear && !raised(err):
		return p.placed(err)
	case l.blames(err, change, since):
		p.event.malformed = toValidText(private.Text(err))
		return l.giveUp(ctx, p)
	case blameOf(err) == damaged:
		err = fmt.Errorf("its storage is damaged, copy what you can of it and delete it: %w", err)
	}
	return l.stick(p, answer{publish.FaultRecord, err}, untouched, err)
}

// nameRow reads which row nameHead or nameWaiting finds, nil for none.
func (l *lane) nameRow(ctx context.Context, statement string, args ...any) (*pending, error) {
	ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	defer cancel()
	var row parkedEvent
	err := l.r.pool.QueryRow(ctx, l.r.sql.In(statement), args...).Scan(&row.place, &row.Topic, &row.Key, &row.attempts, &row.ID, &row.Type, &row.letter)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("name a parked row: %w", err)
	}
	return l.pendingOf(&row), nil
}

// readDue reads parked heads that are due, with what waits for them. If that fails for one of the rows it reads them by halves.
func (l *lane) readDue(ctx context.Context, skip rowKeys, bound int) ([]parkedEvent, error) {
	due := []any{l.number, l.heldTopicNames(), l.r.bounds.drainQueues, skip.topics, skip.keys, skip.places}
	rows, err := l.readLeased(ctx, l.r.sql.In(readDue), append(due, l.r.bounds.drainEvents, bound)...)
	if err == nil || !l.divides(err) {
		return rows, err
	}
	var heads rowKeys
	var q queue
	var place int64
	if e := l.r.readRows(ctx, l.r.sql.In(listDue), due, []any{&q.topic, &q.key, &place}, func() {
		heads.topics, heads.keys, heads.places = append(heads.topics, q.topic), append(heads.keys, q.key), append(heads.places, place)
	}); e != nil {
		return nil, errors.Join(err, e)
	}
	if len(heads.places) == 0 {
		return nil, nil // somebody else has changed the table meanwhile
	}
	return l.readByHalves(ctx, heads, l.r.bounds.drainEvents, bound)
}

// readByHalves reads what readDue does of some heads, so many rows at most.
func (l *lane) readByHalves(ctx context.Context, heads rowKeys, most, bytes int) ([]parkedEvent, error) {
	n := len(heads.places)
	if n == 0 || bytes <= 0 {
		return nil, nil
	}
	rows, err := l.readLeased(ctx, l.r.sql.In(readHeads), l.number, heads.topics, heads.keys, heads.places, most, bytes)
	switch {
	case err == nil:
		return rows, nil
	case !l.divides(err):
		return nil, err
	case n > 1:
		for _, half := range []rowKeys{
			{topics: heads.topics[:n/2], keys: heads.keys[:n/2], places: heads.places[:n/2]},
			{topics: heads.topics[n/2:], keys: heads.keys[n/2:], places: heads.places[n/2:]},
		} {
			more, err := l.readByHalves(ctx, half, max(most/2, 1), bytes)
			if err != nil {
				return nil, err
			}
			for i := range more {
				bytes -= eventBytes(&more[i].logEvent)
			}
			rows = append(rows, more...)
		}
		return rows, nil
	case most > 1:
		return l.readByHalves(ctx, heads, most/2, bytes)
	}
	p, e := l.nameRow(ctx, nameHead, l.number, heads.topics[0], heads.keys[0], heads.places[0])
	if e != nil || p == nil {
		return nil, e
	}
	if p.row.place != heads.places[0] {
		return nil, nil
	}
	return nil, l.giveUpRow(ctx, p, int(untouched), math.MaxUint64, err)
}

// unreadableProbe is for what readProbe cannot read.
func (l *lane) unreadableProbe(ctx context.Context, h *hold, at spot, after int64, cause error) error {
	p, err := l.nameRow(ctx, nameWaiting, l.number, at.topic, at.partition, &after, true)
	if err != nil || p == nil {
		return errors.Join(cause, err)
	}
	h.tried, h.nextAt = p.row.place, l.r.env.now().Add(l.slowAfter())
	if l.leases.has(rowKeyOf(p)) {
		return nil // it is stuck
	}
	return l.giveUpRow(ctx, p, int(untouched), math.MaxUint64, cause)
}

// resumeSome makes parked events due that waited for what takes events again. A row that cannot be changed is left out.
func (l *lane) resumeSome(ctx context.Context, h *hold, at spot) error {
	failpoint.Hit(failpoint.RelayAnswered)
	var n int
	since := l.changes[holdResumed]
	for most := l.r.bounds.resumes; ; {
		err := l.inTx(ctx, func(batch *pgx.Batch) {
			batch.Queue(l.r.sql.In(resumeHeld), l.number, at.topic, at.partition, most, h.past).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		}, func(*pgx.Batch) { failpoint.Hit(failpoint.RelayResuming) })
		if err == nil {
			h.resuming = n == most
			break
		}
		if !l.divides(err) {
			return err
		}
		if most > 1 {
			most /= 2
			continue
		}
		p, e := l.nameRow(ctx, nameWaiting, l.number, at.topic, at.partition, h.past, false)
		if e != nil || p == nil {
			return errors.Join(err, e)
		}
		h.past, h.passed = &p.row.place, h.parked
		if i := slices.IndexFunc(l.stuck, func(s stuckRow) bool { return s.item.queue == p.item.queue && s.row.place == p.row.place }); i >= 0 {
			l.stuck[i].waits = &at
			continue
		}
		if err := l.giveUpWaiting(ctx, p, at, since, err); err != nil {
			return err
		}
	}
	if n > 0 {
		l.changes[holdResumed]++
	}
	failpoint.Hit(failpoint.RelayResumed)
	l.tasks.Or(queueDue)
	signal(l.tasksDue)
	return nil
}

// holdDormant makes parked events wait for what they would else begin to wait for with the next flush.
func (l *lane) holdDormant(ctx context.Context) error {
	var events []*pending
	var answers []answer
	for _, d := range l.dormant {
		l.tried(d.pending)
		at, fault := d.to.spot, publish.FaultPartition
		if d.why == topicHeld {
			at.partition, fault = wholeTopic, publish.FaultTopic
		}
		if l.holds[at] != nil { // else it has come back meanwhile: it stays due
			events, answers = append(events, d.pending), append(answers, answer{fault, errUnanswered})
		}
	}
	l.dormant = nil
	return l.writeOutcomes(ctx, events, answers, slices.Repeat([]outcome{held}, len(events)))
}
