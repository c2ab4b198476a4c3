package relay

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
)

// A lane remembers which queues have parked events, so that later events of their keys wait. Any number may be parked, and
// only so many are remembered: beyond that the topic with the most is queued as a whole. Nor are all rows counted when there are
// very many: a lane is loaded within its lease. When as many of a queue as were counted have left, the next are counted.

const (
	maxQueues    = 10_000          // that a lane remembers
	allCounted   = 20_000          // rows of a lane or a topic: if there are as many,
	maxCounted   = 2               // rows of each queue are counted at first,
	againCounted = 1000            // and of few queues later; of many as many as allCounted together, if that is more than maxCounted of each
	recountEvery = 5 * time.Second // whether a topic must still be queued as a whole
)

// count counts a row of q.
func (l *lane) count(q queue) {
	if l.whole[q.topic] {
		return
	}
	l.parked[q]++
	l.bound()
}

// bound queues the topics with the most queues as a whole until no more queues are remembered than may be.
func (l *lane) bound() {
	for len(l.parked) > maxQueues {
		queues, most := map[string]int{}, ""
		for q := range l.parked {
			if queues[q.topic]++; queues[q.topic] > queues[most] || queues[q.topic] == queues[most] && q.topic < most {
				most = q.topic
			}
		}
		l.queueWhole(most)
	}
}

func (l *lane) queueWhole(topic string) {
	l.whole[topic] = true
	l.recountAt = l.r.env.now().Add(recountEvery)
	for q := range l.parked {
		if q.topic == topic {
			delete(l.parked, q)
			delete(l.more, q)
		}
	}
	l.r.c.Logger.Warn("events of very many keys wait: the topic is queued as a whole", "topic", topic, "lane", l.number)
}

// forget counts one row of q less: it has left the table.
func (l *lane) forget(q queue) {
	if l.whole[q.topic] {
		return
	}
	l.parked[q]--
	switch {
	case l.parked[q] > 0:
	case l.more[q]:
		l.spent[q] = true // until countSpent it has the rows that were not counted
	default:
		delete(l.parked, q)
	}
}

// countSpent counts the queues again of which all counted rows have left. It comes before anything else looks at them.
func (l *lane) countSpent(ctx context.Context) error {
	if len(l.spent) == 0 {
		return nil
	}
	most := max(min(allCounted/len(l.spent), againCounted), maxCounted)
	var again rowKeys
	for q := range l.spent {
		again.addQueue(q)
		delete(l.parked, q)
		delete(l.more, q)
	}
	clear(l.spent)
	found, err := l.r.readCounts(ctx, countAgain, most, l.number, most, again.topics, again.keys)
	if err != nil {
		return err
	}
	l.remember(found)
	return nil
}

// remember adds queues that were counted.
func (l *lane) remember(found queueCounts) {
	maps.Copy(l.parked, found.rows)
	maps.Copy(l.more, found.more)
	l.dormantQueues = append(l.dormantQueues, found.dormantQueues...)
}

// recount looks whether a topic that is queued as a whole has few queues by now, and not so many rows that this would take long.
func (l *lane) recount(ctx context.Context) error {
	if len(l.whole) == 0 || l.r.env.now().Before(l.recountAt) {
		return nil
	}
	l.recountAt = l.r.env.now().Add(recountEvery)
	for topic := range l.whole {
		rows, err := l.r.countRows(ctx, countTopic, l.number, topic)
		if err != nil {
			return err
		}
		if rows == l.r.listed {
			continue
		}
		found, err := l.r.readCounts(ctx, listTopic, 0, l.number, topic)
		if err != nil {
			return err
		}
		if len(found.rows) > (maxQueues-len(l.parked))/2 {
			continue
		}
		delete(l.whole, topic)
		l.remember(found)
		l.r.c.Logger.Info("the topic is queued by key again", "topic", topic, "lane", l.number)
	}
	return nil
}

// load reads what is parked and held in a lane. What was held when the rows were written is tried at once.
func (r *Relay) load(ctx context.Context, l *lane) (err error) {
	switch rows, err := r.countRows(ctx, countLane, l.number); {
	case err != nil:
		return err
	case rows == r.listed:
		if err := r.loadTopics(ctx, l); err != nil {
			return err
		}
	case rows > 0:
		found, err := r.readCounts(ctx, listLane, 0, l.number)
		if err != nil {
			return err
		}
		l.remember(found)
		l.bound()
	}
	now := r.env.now()
	if err := r.readSpots(ctx, loadHolds, l.number, func(at spot) { l.holds[at] = &hold{nextAt: now} }); err != nil {
		return err
	}
	l.held, err = r.readHeld(ctx, l.number)
	l.heldAt = now
	return err
}

// loadTopics reads what is parked in a lane, topic by topic: there is too much for one list.
func (r *Relay) loadTopics(ctx context.Context, l *lane) error {
	var topics []string
	if err := r.readSpots(ctx, listTopics, l.number, func(at spot) { topics = append(topics, at.topic) }); err != nil {
		return err
	}
	for _, topic := range topics {
		rows, err := r.countRows(ctx, countTopic, l.number, topic)
		if err != nil {
			return err
		}
		var found queueCounts
		if rows < r.listed {
			found, err = r.readCounts(ctx, listTopic, 0, l.number, topic)
		} else {
			found, err = r.readCounts(ctx, listQueues, r.counted, l.number, r.counted, topic, maxQueues+1)
		}
		if err != nil {
			return err
		}
		l.remember(found)
		l.bound()
	}
	return nil
}

// countRows counts the rows of a lane or a topic, as many as may be listed at once.
func (r *Relay) countRows(ctx context.Context, statement string, lane int, topic ...any) (rows int, err error) {
	err = r.readRows(ctx, r.sql.In(statement), append([]any{lane, r.listed}, topic...), []any{&rows}, func() {})
	if err != nil {
		return 0, fmt.Errorf("count parked events: %w", err)
	}
	return rows, nil
}

// queueCounts are queues that have rows.
type queueCounts struct {
	rows          map[queue]int  // how many were counted
	more          map[queue]bool // of these there may be more
	dormantQueues []queue        // no row of these would ever fall due
}

// readCounts reads the answers of listLane, listTopic, listQueues or countAgain. The last two count so many rows of a queue at most.
func (r *Relay) readCounts(ctx context.Context, statement string, most int, args ...any) (queueCounts, error) {
	found := queueCounts{rows: map[queue]int{}, more: map[queue]bool{}}
	var q queue
	var n int
	var dormant, waits bool
	err := r.readRows(ctx, r.sql.In(statement), args, []any{&q.topic, &q.key, &n, &dormant, &waits}, func() {
		found.rows[q] = n
		if most > 0 && n >= most {
			found.more[q] = true
		}
		if dormant && !waits && q.ordered() {
			found.dormantQueues = append(found.dormantQueues, q)
		}
	})
	if err != nil {
		return queueCounts{}, fmt.Errorf("read parked queues: %w", err)
	}
	return found, nil
}

// readSpots reads topics, and partitions of them.
func (r *Relay) readSpots(ctx context.Context, statement string, lane int, do func(spot)) error {
	var at spot
	if err := r.readRows(ctx, r.sql.In(statement), []any{lane}, []any{&at.topic, &at.partition}, func() { do(at) }); err != nil {
		return fmt.Errorf("read held topics: %w", err)
	}
	return nil
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
