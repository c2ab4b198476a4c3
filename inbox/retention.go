package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file removes rows of `inbox` that nobody needs any more, and starts that nobody will ask for.
//
// A row goes when its event was settled longer ago than Config.Retention and its offset, where it has one, lies below the
// position of its partition: so a record that Kafka delivers again is either known by its row or below the position,
// and then it is Stale. A row that says 'stored' stays, and one that says 'dead' while a letter of the event is open.

// errNotOurTurn is said where another node is at it, or the time of the next turn has not come.
var errNotOurTurn = errors.New("it is not our turn")

// retention removes rows.
type retention struct{ *env }

// retentionLoop removes what may go, turn by turn, until ctx ends. Any number of nodes may run it: the row of the
// consumer in `retention` is at once the lock, the mark, and the time of the next turn, so that together they do no more
// than one would. A node that finds another at it looks again after a while.
func (ret *retention) retentionLoop(ctx context.Context) error {
	every := retentionEvery(ret.c.Retention)
	idle := func() time.Duration { return time.Duration((0.75 + 0.5*ret.random()) * float64(every)) }
	limit, failures := retentionFirst, 0
	wait := time.Duration(ret.random() * float64(time.Second)) // nodes that start together
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
			limit = max(limit/2, retentionLeast) // It may have been too much.
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

// retained is what a turn did, and when the next should come.
type retained struct {
	swept
	nextLimit int
	wait      time.Duration
}

// retentionTurn reads up to limit rows from the mark on and removes those that may go, in one transaction. Whole begins
// at the first row instead.
func (ret *retention) retentionTurn(ctx context.Context, limit int, whole bool) (retained, error) {
	ctx, cancel := context.WithTimeout(ctx, retentionTimeout)
	defer cancel()
	if _, err := ret.pool.Exec(ctx, ret.sql.retentionRow, ret.c.Consumer); err != nil {
		return retained{}, fmt.Errorf("make retention row: %w", err)
	}
	var t retained
	var begun time.Time
	err := pgx.BeginTxFunc(ctx, ret.pool, pgx.TxOptions{BeginQuery: ret.sql.retentionBegin}, func(tx pgx.Tx) error {
		begun = time.Now() // Waiting for a connection is no work.
		// 1. The turn: one node has the row. It is not waited for.
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
		// 2. The rows.
		s := swept{limit: limit}
		working := time.Now()
		var overdue int64
		err = tx.QueryRow(ctx, ret.sql.retentionSweep, ret.c.Consumer, start.from, ret.c.Retention.Microseconds(), int32(limit)).
			Scan(&s.read, &s.removed, &s.last, &s.kept, &overdue)
		if err != nil {
			return fmt.Errorf("remove inbox rows: %w", err)
		}
		s.overdue, s.took = time.Duration(overdue)*time.Microsecond, time.Since(working)
		// 3. The mark, and when the next node may begin.
		t.swept = s
		t.nextLimit, t.wait = pace(s, start.from, ret.c.Retention)
		next := start.after(s)
		if next.from == nil {
			next = m // There was nothing at all.
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
	t.took = time.Since(begun) // With the commit: that is what others may have waited for.
	_, paced := pace(t.swept, nil, ret.c.Retention)
	t.wait = max(t.wait, paced)
	return t, nil
}

// forgetStarts removes counts of starts that were never asked for again: say, because the partition was handed over in
// order before the handler had run. The table holds few rows at any time.
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
