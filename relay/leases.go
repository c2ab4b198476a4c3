package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A lane leases the parked events that it has in memory: those in a call, and those that are about to be. A command of package waiting leaves
// them out, and works on the others beside the lane. It may remove rows, and make the next one of their queue due, under the lock that each
// transaction of the lane takes as well (waitroom.LockLane). So the lane finds its rows as it left them, and may remember queues that have
// none left (parked.go). Nobody but the lane ever adds a row.
//
// A lease begins in the transaction that reads the row, or parks an event that is in a call, and ends in the first transaction after the
// event has left memory: the one that writes its outcome, if it has any. A stuck row is in memory, so that it is not read again, but
// nothing of it is sent: it is not leased, and a person may discard it. If it was published, and cannot be deleted, it stays leased.

// leases are the parked events that a lane has in memory, by rowKey: queues, and rows without a key.
type leases struct {
	of     map[rowKey]int // how many events of each
	events int
	bytes  int
	ended  []rowKey // those that the lane's next transaction ends
}

// begin keeps a parked event in memory from now on: it is not read again.
func (ls *leases) begin(p *pending) {
	ls.of[rowKeyOf(p)]++
	ls.events++
	ls.bytes += p.size()
}

// end ends begin, and with the last event of its queue the lease.
func (ls *leases) end(p *pending) {
	key := rowKeyOf(p)
	ls.events--
	ls.bytes -= p.size()
	if ls.of[key]--; ls.of[key] <= 0 {
		delete(ls.of, key)
		ls.endOf(key)
	}
}

// has says whether events of a row or queue are in memory.
func (ls *leases) has(key rowKey) bool { return ls.of[key] > 0 }

// endOf ends the lease of a row or queue with the lane's next transaction.
func (ls *leases) endOf(key rowKey) { ls.ended = append(ls.ended, key) }

// endUnlessHas is endOf of those of which nothing is in memory.
func (ls *leases) endUnlessHas(keys ...rowKey) {
	for _, key := range keys {
		if !ls.has(key) {
			ls.endOf(key)
		}
	}
}

// keys are all of them, for a statement.
func (ls *leases) keys() (all rowKeys) {
	for key := range ls.of {
		all.addKey(key)
	}
	return all
}

// beginLeases says that l tells what it has in memory, from its claim on.
func (r *Relay) beginLeases(ctx context.Context, l *lane) error {
	ctx, cancel := r.env.limit(ctx, r.statementTimeout)
	defer cancel()
	if _, err := r.pool.Exec(ctx, r.sql.In(beginLeases), l.number, r.c.Name, l.epoch, l.token); err != nil {
		return fmt.Errorf("begin to lease parked events: %w", err)
	}
	return nil
}

// lease adds the statement that leases rows, unless they are in memory already.
func (l *lane) lease(batch *pgx.Batch, keys []rowKey) {
	var rows rowKeys
	for _, key := range keys {
		if !l.leases.has(key) {
			rows.addKey(key)
		}
	}
	if len(rows.topics) > 0 {
		batch.Queue(l.r.sql.In(leaseParked), l.number, rows.topics, rows.keys, rows.places)
	}
}

// queueEnded adds the statement that ends leases.
func (l *lane) queueEnded(batch *pgx.Batch) {
	var rows rowKeys
	for _, key := range l.leases.ended {
		rows.addKey(key)
	}
	if len(rows.topics) > 0 {
		batch.Queue(l.r.sql.In(endLeases), l.number, rows.topics, rows.keys, rows.places)
	}
}

// endLeases ends the leases of what has left memory without an outcome.
func (l *lane) endLeases(ctx context.Context) error {
	if len(l.leases.ended) == 0 {
		return nil
	}
	if err := l.inTx(ctx, func(batch *pgx.Batch) { batch.Queue(l.r.sql.In(unflushed)) }); err != nil {
		return fmt.Errorf("end leases of parked events: %w", err)
	}
	return nil
}

// readLeased reads parked events and leases them. The caller has them in memory then, or ends their leases.
func (l *lane) readLeased(ctx context.Context, statement string, args ...any) (events []parkedEvent, err error) {
	err = l.inTx(ctx, func(batch *pgx.Batch) {
		batch.Queue(l.r.sql.In(unflushed))
		batch.Queue(statement, args...).Query(func(rows pgx.Rows) (err error) {
			events, err = collectParked(rows)
			return err
		})
	}, func(batch *pgx.Batch) {
		var keys []rowKey
		seen := map[rowKey]bool{}
		for i := range events {
			if key := events[i].rowKey(); !seen[key] {
				seen[key] = true
				keys = append(keys, key)
			}
		}
		l.lease(batch, keys)
	})
	if err != nil {
		ctx, cancel := l.r.env.limit(ctx, l.r.statementTimeout)
		defer cancel()
		return nil, sessionsOr(ctx, l.r.pool, err)
	}
	return events, nil
}
