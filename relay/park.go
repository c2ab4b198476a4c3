package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast/internal/cutoff"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/retry"
)

// beginGuarded begins a transaction whose locks cannot outlast this process by much: if it freezes, Postgres ends the
// transaction, and a lane's row does not stay locked long after its lease has run out. So it does if this process is cut off.
var beginGuarded = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; set local lock_timeout = '5s'; set local statement_timeout = '30s'; " +
	cutoff.SetLocal(10*time.Second)

// flushEvery is how often a transaction parks events while pages can still be read.
const flushEvery = 100 * time.Millisecond

// dormantRow is a parked event whose topic or partition is held: it waits until that is over.
type dormantRow struct {
	*pending
	why disposition // topicHeld or partitionDown
}

// flush parks the events that leave and moves the cursor past them. It does that seldom, unless now says so or the lane is
// full, because each time is a transaction.
func (l *lane) flush(ctx context.Context, now bool) error {
	l.flushLater = false
	if len(l.tracker.pages) == 0 && len(l.dormant) == 0 {
		return nil
	}
	for most := l.r.bounds.parks; ; {
		leave, after := l.tracker.toPark(most, l.r.bounds.parkBytes)
		if len(leave) == 0 && len(l.dormant) == 0 {
			return nil
		}
		at := l.r.env.now()
		if !now && at.Before(l.flushAt) && !l.full() {
			l.flushLater = true
			return nil
		}
		now, l.flushAt = true, at.Add(flushEvery)
		if len(leave) == 0 {
			after = l.publishedUpTo()
		}
		if err := l.park(ctx, leave, after); err == nil {
			most = min(2*most, l.r.bounds.parks)
		} else if most, err = l.isolate(ctx, leave, err); err != nil {
			return err
		}
	}
}

// park writes parked events, the end of replays and the cursor after them in one transaction. The lane's memory changes
// only after COMMIT is known; an error means that the lane must be dropped.
func (l *lane) park(ctx context.Context, leave []*pending, after cursor) error {
	rows, given := l.rowsOf(leave), l.deadBatches(leave)
	var closed []int64
	for _, p := range leave {
		if p.disposition == published {
			closed = append(closed, p.event.letter)
		}
	}
	dormant := l.dormantRows()
	sent := l.r.env.now()
	l.r.saver.exclude(l) // until our memory has the cursor: no save of an older one may come after it
	defer l.r.saver.include(l)
	var places []int64
	err := l.inTx(ctx, func(batch *pgx.Batch) {
		places = places[:0]
		l.queueSave(batch, after)
		if len(rows.ids) > 0 {
			batch.Queue(l.r.sql.In(parkEvents), l.number, rows.topics, rows.keys, rows.whys, rows.attempts, rows.errors, rows.ids,
				rows.sources, rows.types, rows.times, rows.headers, rows.payloads, rows.letters, rows.delays, rows.partitions).
				Query(func(written pgx.Rows) error {
					var place int64
					_, err := pgx.ForEachRow(written, []any{&place}, func() error { places = append(places, place); return nil })
					return err
				})
		}
		for i := range given { // after the rows: a letter holds nothing that came before its event
			given[i].queue(l, batch)
		}
		for i := range rows.fix.topics {
			batch.Queue(l.r.sql.In(fixHead), l.number, rows.fix.topics[i], rows.fix.keys[i])
		}
		if len(rows.resume.topics) > 0 {
			l.resume(batch, rows.resume, new([]queue)) // each has a row
		}
		if len(closed) > 0 {
			batch.Queue(l.r.sql.In(closeLetters), closed)
		}
		if len(dormant.places) > 0 {
			batch.Queue(l.r.sql.In(holdParked), l.number, dormant.topics, dormant.keys, dormant.places, dormant.partitions)
		}
	}, func(batch *pgx.Batch) {
		failpoint.Hit(failpoint.RelayParking)
		for i := range given {
			given[i].publish(l, batch)
		}
		l.lease(batch, inCall(leave, places))
	})
	if err != nil {
		return fmt.Errorf("park events: %w", err)
	}
	failpoint.Hit(failpoint.RelayParked)
	l.wrote(after, sent.Add(l.r.c.Lease))
	for _, d := range l.dormant {
		l.tried(d.pending)
	}
	l.dormant = nil
	n := 0
	for _, p := range leave {
		p.state = settled
		switch p.disposition {
		case published:
		case malformed:
			l.queues.entered(p.item.queue)
		default:
			l.left(p, places[n])
			n++
		}
	}
	for i := range given {
		given[i].tell(l)
	}
	for _, p := range leave {
		if !p.inCall {
			l.tracker.drop(p)
		}
	}
	l.tracker.advance()
	l.wrotePast(l.passed())
	l.free()
	return nil
}

// inCall are the new rows of events that are in a call.
func inCall(leave []*pending, places []int64) (keys []rowKey) {
	n := 0
	for _, p := range leave {
		if p.disposition == published || p.disposition == malformed {
			continue
		}
		if p.inCall {
			keys = append(keys, rowKeyAt(p.item.queue, places[n]))
		}
		n++
	}
	return keys
}

// left records that an event is a row of the table now.
func (l *lane) left(p *pending, place int64) {
	l.queues.entered(p.item.queue)
	l.remember(p.item.queue)
	if h := l.holdOf(p); h != nil {
		h.parked++
	}
	if p.inCall { // the answer says what becomes of the row
		p.row = &parkedRow{place: place}
		if p.disposition == recordRefused {
			p.row.attempts = 1
		}
		l.leases.begin(p)
		p.part()
	}
	if observe := l.r.c.Observer.OnWaiting; observe != nil {
		observe(Waiting{
			Lane:  l.number,
			Event: p.event.Event,
			Why:   p.disposition.reason(),
			Err:   p.err,
		})
	}
}

// parkedRows are the columns of parkEvents, and the queues whose head may have changed.
type parkedRows struct {
	topics, keys, whys, errors, ids, sources, types []string
	attempts                                        []int32
	times                                           []pgtype.Timestamptz
	headers                                         []*string
	payloads                                        [][]byte
	letters                                         []int64
	delays                                          []*float64
	partitions                                      []*int32
	fix, resume                                     rowKeys
}

// why is the word for a parked event's disposition, in the column why. A replay of a dead letter comes from
// a record that was refused, and has the same word.
func (d disposition) why() string {
	switch d {
	case topicHeld:
		return "topic"
	case partitionDown:
		return "partition"
	case recordRefused, first:
		return "record"
	default:
		return "follows"
	}
}

// reason is why in the words of package waiting, which people read.
func (d disposition) reason() string {
	switch word := d.why(); word {
	case "record":
		return "failed"
	case "follows":
		return "behind-event"
	default:
		return word
	}
}

// rowsOf keeps the table's invariant: only the head of a queue has a time at which it is due, and parkEvents knows which row is one. The
// head of a topic or a partition that is held has none: a probe says when that is over.
func (l *lane) rowsOf(leave []*pending) parkedRows {
	var rows parkedRows
	held := map[queue]bool{} // by a letter that is written in the same transaction
	for _, p := range leave {
		if p.disposition == published {
			continue
		}
		if p.disposition == malformed {
			held[p.item.queue] = held[p.item.queue] || l.letterHolds(p)
			continue
		}
		e, q := &p.event.Event, p.item.queue
		var delay *float64
		var partition *int32
		attempts, why := int32(0), p.disposition.why()
		cause := p.err
		switch p.disposition {
		case recordRefused:
			attempts = 1
			delay = seconds(l.refusedDelay(1, p.err))
		case topicHeld:
			if l.holds[spot{q.topic, wholeTopic}] == nil { // the topic has come back meanwhile
				why, delay = follows.why(), seconds(0)
			}
		case partitionDown:
			at := l.destinationOf(p.event).spot
			if p.to != nil {
				at = p.to.spot
			}
			if l.holds[at] == nil {
				why, delay = follows.why(), seconds(0)
				break
			}
			n := int32(at.partition)
			partition = &n
		case follows:
			delay = seconds(0)
			cause = nil // it was the answer for the event before it
		case first:
			cause = nil
		}
		if p.event.letter != 0 && p.disposition != topicHeld && p.disposition != partitionDown {
			rows.fix.addQueue(q) // it goes to the front of its queue
		}
		if l.queues.whole[q.topic] && delay != nil && !l.leases.has(rowKey{queue: q}) {
			rows.resume.addQueue(q) // nobody has looked whether its head has what makes it due; one that is in memory, or stuck, has
		}
		if held[q] {
			delay = nil
		}
		rows.topics, rows.keys, rows.whys = append(rows.topics, q.topic), append(rows.keys, q.key), append(rows.whys, why)
		rows.attempts, rows.errors = append(rows.attempts, attempts), append(rows.errors, errorText(cause))
		rows.ids, rows.sources, rows.types = append(rows.ids, e.ID), append(rows.sources, e.Source), append(rows.types, e.Type)
		rows.times, rows.headers, rows.payloads = append(rows.times, momentIn(e.Time)), append(rows.headers, headersText(p.event)), append(rows.payloads, e.Payload)
		rows.letters, rows.delays = append(rows.letters, p.event.letter), append(rows.delays, delay)
		rows.partitions = append(rows.partitions, partition)
	}
	return rows
}

// heldRows are the columns of holdParked.
type heldRows struct {
	rowKeys
	partitions []*int32 // null: the whole topic is held
}

func (h *heldRows) addRow(p *pending, why disposition) {
	h.add(p)
	var partition *int32
	if why == partitionDown {
		n := int32(p.to.partition)
		partition = &n
	}
	h.partitions = append(h.partitions, partition)
}

// refusedDelay is how long a refused event waits after so many attempts; 0 if it is about to be given up.
func (l *lane) refusedDelay(attempts int, err error) time.Duration {
	if retry.IsPermanent(err) || spent(attempts, l.r.c.Retry.Attempts) {
		return 0
	}
	if d, said := retry.AfterOf(err); said {
		return d
	}
	return l.r.c.Retry.Delay(attempts, l.r.env.chance())
}

// inTx runs statements that change the lane's rows in one transaction under its fence. It takes three round trips, and
// changes nothing when the lane is no longer ours.
//
// The statements that then queues run after those, in the same transaction: it is for what depends on their answers.
//
// The saver leaves the lane out meanwhile, and may hardly find a gap between one such transaction and the next. So inTx
// renews a lease that has not been renewed for a while. (park renews it by a statement of its own.)
func (l *lane) inTx(ctx context.Context, fill func(batch *pgx.Batch), then ...func(batch *pgx.Batch)) error {
	if err := l.behindFence(ctx, fill, then); err != nil {
		return err
	}
	l.leases.ended = nil
	if l.stale() {
		l.r.saver.try(ctx, []*lane{l})
	} else if l.leftOut.Load() {
		l.r.saver.note() // else the next save comes a heartbeat later, and finds the next transaction
	}
	return nil
}

func (l *lane) behindFence(ctx context.Context, fill func(batch *pgx.Batch), then []func(batch *pgx.Batch)) (err error) {
	ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
	defer cancel()
	l.r.saver.exclude(l)
	defer l.r.saver.include(l)
	defer func() {
		if err != nil && blameOf(err) == elsewhere { // else Postgres has undone everything
			l.doubtful.Store(true) // before the lane is saved again
		}
	}()
	return pgx.BeginTxFunc(ctx, l.r.pool, pgx.TxOptions{BeginQuery: beginGuarded}, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(l.r.sql.In(fenceLane), l.number, l.r.c.Name, l.epoch, l.token)
		l.queueEnded(batch)
		fill(batch)
		results := tx.SendBatch(ctx, batch)
		defer results.Close()
		var one int
		if err := results.QueryRow().Scan(&one); errors.Is(err, pgx.ErrNoRows) {
			return errFenced
		} else if err != nil {
			return err
		}
		if err := results.Close(); err != nil { // runs the rest
			return err
		}
		for _, fill := range then {
			batch := &pgx.Batch{}
			if fill(batch); batch.Len() > 0 {
				if err := tx.SendBatch(ctx, batch).Close(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// queueSave adds the statement that saves this one lane. It is for transactions of the lane, which the saver leaves out
// meanwhile.
func (l *lane) queueSave(batch *pgx.Batch, c cursor) {
	published := []int64{l.published.Load()}
	batch.Queue(l.r.sql.In(saveLanes), l.r.c.Name, l.r.c.Lease, []int16{int16(l.number)}, []int64{l.epoch}, []*string{&c.done}, []*string{&c.upto}, []int64{c.pos}, l.token, l.r.saver.next(), published)
}

func headersText(rec *logEvent) *string {
	if rec.Headers == nil {
		return nil
	}
	text, err := json.Marshal(rec.Headers)
	if err != nil {
		panic(err) // a map of strings always has a JSON form
	}
	s := string(text)
	return &s
}

// errorText is an error as the table keeps it, of bounded length.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := private.Text(err)
	if len(text) > 2048 {
		text = text[:2048]
	}
	return toValidText(text)
}

func seconds(d time.Duration) *float64 {
	s := d.Seconds()
	return &s
}
