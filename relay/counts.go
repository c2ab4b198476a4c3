package relay

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
)

// A lane remembers which queues have parked events, so that later events of their keys wait. Any number may be parked, and
// only so many are remembered: beyond that the topic with the most is queued as a whole.

const (
	maxQueues    = 10_000          // that a lane remembers
	recountEvery = 5 * time.Second // whether a topic must still be queued as a whole
)

// count counts a row of q.
func (l *lane) count(q queue) {
	if l.whole[q.topic] {
		return
	}
	l.parked[q]++
	if len(l.parked) <= maxQueues {
		return
	}
	queues, most := map[string]int{}, ""
	for q := range l.parked {
		if queues[q.topic]++; queues[q.topic] > queues[most] || queues[q.topic] == queues[most] && q.topic < most {
			most = q.topic
		}
	}
	l.queueWhole(most)
}

func (l *lane) queueWhole(topic string) {
	l.whole[topic] = true
	l.recountAt = l.r.env.now().Add(recountEvery)
	for q := range l.parked {
		if q.topic == topic {
			delete(l.parked, q)
		}
	}
	l.r.c.Logger.Warn("events of very many keys are parked: the topic is queued as a whole", "topic", topic, "lane", l.number)
}

// forget counts one row of q less: it has left the table.
func (l *lane) forget(q queue) {
	if l.whole[q.topic] {
		return
	}
	if l.parked[q]--; l.parked[q] <= 0 {
		delete(l.parked, q)
	}
}

// recount looks whether a topic that is queued as a whole has few queues by now.
func (l *lane) recount(ctx context.Context) error {
	if len(l.whole) == 0 || l.r.env.now().Before(l.recountAt) {
		return nil
	}
	l.recountAt = l.r.env.now().Add(recountEvery)
	for topic := range l.whole {
		room := (maxQueues - len(l.parked)) / 2
		counts, sleepers, err := l.r.readCounts(ctx, l.r.sql.In(countQueues), l.number, topic, room+1)
		if err != nil {
			return err
		}
		if len(counts) > room {
			continue
		}
		delete(l.whole, topic)
		maps.Copy(l.parked, counts)
		l.sleepers = append(l.sleepers, sleepers...)
		l.r.c.Logger.Info("the topic is queued by key again", "topic", topic, "lane", l.number)
	}
	return nil
}

// load reads what is parked and held in a lane. What was held when the rows were written is tried at once.
func (r *Relay) load(ctx context.Context, l *lane) (err error) {
	l.parked, l.sleepers, err = r.readCounts(ctx, r.sql.In(loadWaiting), l.number, maxQueues+1)
	if err != nil {
		return err
	}
	if len(l.parked) > maxQueues {
		clear(l.parked)
		if err := r.readSpots(ctx, loadTopics, l.number, func(at spot) { l.queueWhole(at.topic) }); err != nil {
			return err
		}
	}
	now := r.env.now()
	if err := r.readSpots(ctx, loadHolds, l.number, func(at spot) { l.holds[at] = &hold{nextAt: now} }); err != nil {
		return err
	}
	l.held, err = r.readHeld(ctx, l.number)
	l.heldAt = now
	return err
}

// readCounts reads rows of loadWaiting or countQueues: how many rows each queue has, and the queues in which no row would
// ever fall due.
func (r *Relay) readCounts(ctx context.Context, statement string, args ...any) (counts map[queue]int, sleepers []queue, err error) {
	counts = map[queue]int{}
	var q queue
	var n int
	var dormant, waits bool
	err = r.readRows(ctx, statement, args, []any{&q.topic, &q.key, &n, &dormant, &waits}, func() {
		counts[q] = n
		if dormant && !waits && q.ordered() {
			sleepers = append(sleepers, q)
		}
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read parked queues: %w", err)
	}
	return counts, sleepers, nil
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
