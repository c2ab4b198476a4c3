package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A lane remembers which queues may have parked events, so that later events of their keys wait. It may remember a queue that has none
// left: its next event is parked then, and Postgres, which knows, makes it due at once. Any number of queues may have some, and only so
// many are remembered: beyond that the topic with the most is queued as a whole.

// wholeEvery is how often a lane looks whether a topic must still be queued as a whole.
const wholeEvery = 5 * time.Second

// queues says which events of the log have to wait, because something of their key waits already.
//
// Invariant: parked has each queue that has rows in the table, as last committed, unless its topic is in whole. It may have some without rows.
// Of a topic in whole so many queues are parked that they are not remembered: every event of it with a key waits.
type queues struct {
	most     int // queues that it remembers
	parked   map[queue]bool
	whole    map[string]bool
	held     map[queue]bool // by dead letters, when that was last read
	entering map[queue]int  // events with a key that are about to be parked
	enters   int            // all that are
}

func newQueues(most int) queues {
	return queues{
		most:     most,
		parked:   map[queue]bool{},
		whole:    map[string]bool{},
		held:     map[queue]bool{},
		entering: map[queue]int{},
	}
}

// has says whether a later event of the queue waits.
func (qs *queues) has(q queue) bool { return qs.parked[q] || qs.entering[q] > 0 || qs.held[q] }

// mayHaveRows says whether the queue may have rows in the table.
func (qs *queues) mayHaveRows(q queue) bool { return qs.parked[q] || qs.whole[q.topic] }

// none says in one look that no event waits for another.
func (qs *queues) none() bool {
	return len(qs.parked)+len(qs.entering)+len(qs.held)+len(qs.whole) == 0
}

// enter notes an event that is about to be parked.
func (qs *queues) enter(q queue) {
	if qs.enters++; q.ordered() {
		qs.entering[q]++
	}
}

// entered ends enter: the event is parked, or stays.
func (qs *queues) entered(q queue) {
	qs.enters--
	if !q.ordered() {
		return
	}
	if qs.entering[q]--; qs.entering[q] <= 0 {
		delete(qs.entering, q)
	}
}

// remember adds a queue that has rows. If these are more than a lane remembers, the topics that have the most of them are queued as a whole
// now; it returns those.
func (qs *queues) remember(q queue) (whole []string) {
	if qs.whole[q.topic] {
		return nil
	}
	qs.parked[q] = true
	for len(qs.parked) > qs.most {
		of, most := map[string]int{}, ""
		for q := range qs.parked {
			if of[q.topic]++; of[q.topic] > of[most] || of[q.topic] == of[most] && q.topic < most {
				most = q.topic
			}
		}
		qs.whole[most] = true
		maps.DeleteFunc(qs.parked, func(q queue, _ bool) bool { return q.topic == most })
		whole = append(whole, most)
	}
	return whole
}

// few is how many queues a topic that was queued as a whole may have left when it is queued by key again.
func (qs *queues) few() int { return min(qs.most/10, (qs.most-len(qs.parked))/2) }

// forget forgets queues that have no row any more. Nobody but the lane adds one.
func (qs *queues) forget(emptied []queue) {
	for _, q := range emptied {
		delete(qs.parked, q)
	}
}

// remember adds a queue that has rows.
func (l *lane) remember(q queue) {
	for _, topic := range l.queues.remember(q) {
		l.wholeAt = l.r.env.now().Add(wholeEvery)
		l.r.c.Logger.Warn("events of very many keys wait: the topic is queued as a whole", "topic", topic, "lane", l.number)
	}
}

// found remembers a queue of the table.
func (l *lane) found(q parkedQueue) {
	l.remember(q.queue)
	l.noteDormant(q)
}

// noteDormant has resumeReleased look at a queue that nothing else makes due. What is stuck is tried again by itself.
func (l *lane) noteDormant(q parkedQueue) {
	if q.dormant && q.ordered() && !l.leases.has(rowKey{queue: q.queue}) {
		l.dormantQueues = append(l.dormantQueues, q.queue)
	}
}

// forgetKeyless forgets what waited without a key and has left. The lane asks when it finds nothing that is due: then nothing is to be
// gained by asking for each of many such rows that leave one after the other.
func (l *lane) forgetKeyless(ctx context.Context) error {
	var topics []string
	for q := range l.queues.parked {
		if !q.ordered() {
			topics = append(topics, q.topic)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	var q queue
	if err := l.r.readRows(ctx, l.r.sql.In(keylessGone), []any{l.number, topics}, []any{&q.topic}, func() { l.queues.forget([]queue{q}) }); err != nil {
		return fmt.Errorf("read topics with parked events: %w", err)
	}
	return nil
}

// lookAtWhole looks whether a topic that is queued as a whole has few queues by now. If not, it looks at some of them, at others each time: a
// letter that is closed by now may have held their heads when the lane was claimed, and the claim did not see all of them.
func (l *lane) lookAtWhole(ctx context.Context) error {
	if len(l.queues.whole) == 0 || l.r.env.now().Before(l.wholeAt) {
		return nil
	}
	l.wholeAt = l.r.env.now().Add(wholeEvery)
	for topic := range l.queues.whole {
		few := l.queues.few()
		found, err := l.r.readQueues(ctx, l.number, queue{topic: topic}, few+1)
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(q parkedQueue) bool { return q.topic != topic })
		if len(found) > few {
			continue
		}
		delete(l.queues.whole, topic)
		for _, q := range found {
			l.found(q)
		}
		l.r.c.Logger.Info("the topic is queued by key again", "topic", topic, "lane", l.number)
	}
	if len(l.queues.whole) == 0 {
		return nil
	}
	found, err := l.r.readQueues(ctx, l.number, l.wholeFrom, l.r.bounds.listed)
	if err != nil {
		return err
	}
	l.wholeFrom = queue{}
	for i, q := range found {
		whole := l.queues.whole[q.topic]
		if i+1 == l.r.bounds.listed { // there may be more
			if l.wholeFrom = q.after(); !whole {
				l.wholeFrom = q.afterTopic()
			}
		}
		if whole && !l.queues.held[q.queue] && l.holds[spot{q.topic, wholeTopic}] == nil { // else later
			l.noteDormant(q)
		}
	}
	return nil
}

// load reads what is parked and held in a lane. What was held when the rows were written is tried at once, by
// one event. The rows do not say whether a topic was missing or paused: one that was resumed while nobody owned the lane is tried too.
func (r *Relay) load(ctx context.Context, l *lane) (err error) {
	for next, more := (queue{}), true; more; {
		found, err := r.readQueues(ctx, l.number, next, r.bounds.listed)
		if err != nil {
			return err
		}
		for _, q := range found {
			l.found(q)
			if next = q.after(); l.queues.whole[q.topic] {
				next = q.afterTopic()
			}
		}
		more = len(found) == r.bounds.listed
	}
	now := r.env.now()
	var at spot
	if err := r.readRows(ctx, r.sql.In(loadHolds), []any{l.number}, []any{&at.topic, &at.partition}, func() { l.holds[at] = &hold{nextAt: now} }); err != nil {
		return fmt.Errorf("read held topics: %w", err)
	}
	l.queues.held, err = r.readHeld(ctx, l.number)
	l.heldAt = now
	return err
}

// parkedQueue is a queue that has rows.
type parkedQueue struct {
	queue
	dormant bool // nothing that the lane does would make its first row due: neither its time, nor the end of a hold
}

// after is the first queue that may come after q in the order of topic and key, which is that of their bytes.
func (q queue) after() queue { return queue{q.topic, q.key + "\x01"} }

// afterTopic is the first queue that may come after all of q's topic.
func (q queue) afterTopic() queue { return queue{topic: q.topic + "\x01"} }

// readQueues reads the queues of a lane from one on, so many at most.
func (r *Relay) readQueues(ctx context.Context, lane int, from queue, most int) (found []parkedQueue, err error) {
	var q parkedQueue
	if err := r.readRows(ctx, r.sql.In(listQueues), []any{lane, most, from.topic, from.key}, []any{&q.topic, &q.key, &q.dormant}, func() { found = append(found, q) }); err != nil {
		return nil, fmt.Errorf("read parked queues: %w", err)
	}
	return found, nil
}

// readHeld reads the keys that dead letters hold.
func (r *Relay) readHeld(ctx context.Context, lane int) (map[queue]bool, error) {
	held := map[queue]bool{}
	var q queue
	if err := r.readRows(ctx, r.sql.In(loadHeld), []any{lane}, []any{&q.topic, &q.key}, func() { held[q] = true }); err != nil {
		return nil, fmt.Errorf("read held keys: %w", err)
	}
	return held, nil
}

// readRows runs a statement and calls do for each of its rows, which it has scanned into columns.
func (r *Relay) readRows(ctx context.Context, statement string, args, columns []any, do func()) error {
	ctx, cancel := r.env.limit(ctx, r.statementTimeout)
	defer cancel()
	rows, err := r.pool.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, columns, func() error { do(); return nil })
	return err
}
