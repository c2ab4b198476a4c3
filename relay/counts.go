package relay

import (
	"context"
	"fmt"
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
		counts := map[queue]int{}
		var sleepers []queue
		if err := l.r.readCounts(ctx, l.r.sql.In(countQueues), func(q queue, n int, dormant, waits bool) {
			counts[q] = n
			if dormant && !waits && q.ordered() {
				sleepers = append(sleepers, q)
			}
		}, l.number, topic, room+1); err != nil {
			return err
		}
		if len(counts) > room {
			continue
		}
		delete(l.whole, topic)
		for q, n := range counts {
			l.parked[q] = n
		}
		l.sleepers = append(l.sleepers, sleepers...)
		l.r.c.Logger.Info("the topic is queued by key again", "topic", topic, "lane", l.number)
	}
	return l.resumeReleased(ctx)
}

// readCounts reads rows of loadWaiting or countQueues.
func (r *Relay) readCounts(ctx context.Context, statement string, each func(q queue, n int, dormant, waits bool), args ...any) error {
	ctx, cancel := r.env.limit(ctx, r.statementTimeout)
	defer cancel()
	rows, err := r.pool.Query(ctx, statement, args...)
	if err != nil {
		return fmt.Errorf("read parked queues: %w", err)
	}
	var q queue
	var n int
	var dormant, waits bool
	if _, err := pgx.ForEachRow(rows, []any{&q.topic, &q.key, &n, &dormant, &waits}, func() error { each(q, n, dormant, waits); return nil }); err != nil {
		return fmt.Errorf("read parked queues: %w", err)
	}
	return nil
}

// load reads what is parked and held in a lane. What was held when the rows were written is tried at once.
func (r *Relay) load(ctx context.Context, l *lane) (err error) {
	queues := 0
	err = r.readCounts(ctx, r.sql.In(loadWaiting), func(q queue, n int, dormant, waits bool) {
		queues++
		l.parked[q] = n
		if dormant && !waits && q.ordered() {
			l.sleepers = append(l.sleepers, q)
		}
	}, l.number, maxQueues+1)
	if err != nil {
		return err
	}
	if queues > maxQueues {
		clear(l.parked)
		if err := r.each(ctx, loadTopics, l.number, func(topic string, _ int) { l.queueWhole(topic) }); err != nil {
			return err
		}
	}
	now := r.env.now()
	if err := r.each(ctx, loadHolds, l.number, func(topic string, partition int) {
		if partition == wholeTopic {
			l.topics[topic] = &hold{nextAt: now}
		} else {
			l.partitions[spot{topic, partition}] = &hold{nextAt: now}
		}
	}); err != nil {
		return err
	}
	l.held, err = r.readHeld(ctx, l.number)
	l.heldAt = now
	return err
}

// each reads topics, and partitions of them.
func (r *Relay) each(ctx context.Context, statement string, lane int, do func(topic string, partition int)) error {
	ctx, cancel := r.env.limit(ctx, r.statementTimeout)
	defer cancel()
	rows, err := r.pool.Query(ctx, r.sql.In(statement), lane)
	if err != nil {
		return fmt.Errorf("read held topics: %w", err)
	}
	var topic string
	var partition int
	if _, err := pgx.ForEachRow(rows, []any{&topic, &partition}, func() error { do(topic, partition); return nil }); err != nil {
		return fmt.Errorf("read held topics: %w", err)
	}
	return nil
}
