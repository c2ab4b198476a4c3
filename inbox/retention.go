package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file removes rows of `inbox` that nobody needs any more, and counted starts that nobody will ask for.
//
// A row may go when its event was settled longer than Config.Retention ago and its offset, if it has one, lies below the
// partition's position. So a record that Kafka delivers again is known by its row, or it lies below the position and is Stale.
// A row stays while it says 'stored', and while it says 'dead' and a letter of the event is open.

// errNotOurTurn means that another node is removing rows, or that the next turn is not due.
var errNotOurTurn = errors.New("it is not our turn")

// retention removes rows.
type retention struct{ *env }

// retentionLoop removes rows, turn by turn, until ctx ends. Any number of nodes may run it. The consumer's row in `retention` is
// the lock, the mark, and the time of the next turn, so that all nodes together do as much as one. A node that finds another
// one removing rows tries again later.
func (ret *retention) retentionLoop(ctx context.Context) error {
	every := retentionEvery(ret.c.Retention)
	idle := func() time.Duration { return time.Duration((0.75 + 0.5*ret.random()) * float64(every)) }
	limit, failures := retentionFirst, 0
	wait := time.Duration(ret.random() * float64(time.Second)) // spreads nodes that start together
	daily := time.Now().Add(time.Duration(ret.random() * float64(retentionDaily)))
	for {
		if pause(ctx, wait) != nil {
			return nil
		}
		whole := time.Now().After(daily)
		if whole {
			daily = time.Now().Add(retentionDaily)
		}
		t, err := ret.retentionTurn(ctx, limit, whole)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errNotOurTurn):
			wait, failures = idle(), 0
			continue
		case err != nil:
			ret.transient(err)
			failures++
			wait = max(idle(), spread(databaseBase, retentionPause, failures, ret.random()))
			limit = max(limit/2, retentionLeast) // The turn may have been too large.
			continue
		}
		limit, wait, failures = t.nextLimit, t.wait, 0
		if t.removed > 0 && ret.c.Observer.OnCleaned != nil {
			ret.c.Observer.OnCleaned(t.removed, t.took)
		}
		if whole {
			if err := ret.forgetStarts(ctx); err != nil && ctx.Err() == nil {
				ret.transient(err)
			}
		}
	}
}

// retained is what a turn did, and when the next one should come.
type retained struct {
	swept
	nextLimit int
	wait      time.Duration
}

// retentionTurn reads up to limit rows from the mark on and removes those that may go, in one transaction. whole starts at the
// first row instead of the mark.
func (ret *retention) retentionTurn(ctx context.Context, limit int, whole bool) (retained, error) {
	ctx, cancel := context.WithTimeout(ctx, retentionTimeout)
	defer cancel()
	if _, err := ret.pool.Exec(ctx, ret.sql.retentionRow, ret.c.Consumer); err != nil {
		return retained{}, fmt.Errorf("make retention row: %w", err)
	}
	var t retained
	var begun time.Time
	err := pgx.BeginTxFunc(ctx, ret.pool, pgx.TxOptions{BeginQuery: ret.sql.retentionBegin}, func(tx pgx.Tx) error {
		begun = time.Now() // Do not count the wait for a connection.
		// 1. Take the turn: lock the consumer's row, without waiting for it.
		var m mark
		err := tx.QueryRow(ctx, ret.sql.retentionTake, ret.c.Consumer, retentionPause.Microseconds()).Scan(&m.from, &m.kept)
		if errors.Is(err, pgx.ErrNoRows) {
			return errNotOurTurn
		}
		if err != nil {
			return fmt.Errorf("take retention's turn: %w", err)
		}
		start := m
		if whole {
			start = mark{}
		}
		// 2. Remove the rows.
		s := swept{limit: limit}
		working := time.Now()
		var overdue int64
		err = tx.QueryRow(ctx, ret.sql.retentionSweep, ret.c.Consumer, start.from, ret.c.Retention.Microseconds(), int32(limit)).
			Scan(&s.read, &s.removed, &s.last, &s.kept, &overdue)
		if err != nil {
			return fmt.Errorf("remove inbox rows: %w", err)
		}
		s.overdue, s.took = time.Duration(overdue)*time.Microsecond, time.Since(working)
		// 3. Save the mark, and when the next node may begin.
		t.swept = s
		t.nextLimit, t.wait = pace(s, start.from, ret.c.Retention)
		next := start.after(s)
		if next.from == nil {
			next = m // There were no rows.
		}
		tag, err := tx.Exec(ctx, ret.sql.retentionSave, ret.c.Consumer, next.from, next.kept, t.wait.Microseconds())
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("%d rows", tag.RowsAffected())
		}
		if err != nil {
			return fmt.Errorf("save retention's mark: %w", err)
		}
		if s.removed > 0 {
			failpoint.Hit(failpoint.InboxSweeping)
		}
		return nil
	})
	if err != nil {
		return retained{}, err
	}
	if t.removed > 0 {
		failpoint.Hit(failpoint.InboxSwept)
	}
	t.took = time.Since(begun) // With the commit: others may have waited for it.
	_, paced := pace(t.swept, nil, ret.c.Retention)
	t.wait = max(t.wait, paced)
	return t, nil
}

// forgetStarts removes counts of starts that nobody asked for again, for example because the partition was released before the
// handler ran. The table holds few rows at any time.
func (ret *retention) forgetStarts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, retentionTimeout)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, ret.pool, pgx.TxOptions{BeginQuery: ret.sql.retentionBegin}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, ret.sql.retentionStarts, ret.c.Consumer, max(ret.c.Retention, startsKept).Microseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	return nil
}
