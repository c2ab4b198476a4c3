package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file counts, after an unclean end, how often the handler of an event was started.

// starts are the counts in the table start.
type starts struct{ *env }

// count counts that the handler of an event is about to start, and commits that first. It does not count an event that is known
// already, since no handler will run. Called again because an answer was lost, it counts the same start.
func (st *starts) count(ctx context.Context, d *delivery) (starts int, known bool, err error) {
	var hash []byte
	var result string
	err = st.pool.QueryRow(ctx, st.sql.known, st.c.Consumer, d.e.Source, d.e.ID).Scan(&hash, &result)
	if err == nil {
		return 0, true, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("read inbox row: %w", err)
	}
	if d.start == 0 {
		var before int32
		if err := st.pool.QueryRow(ctx, st.sql.starts, st.c.Consumer, d.e.Source, d.e.ID).Scan(&before); err != nil {
			return 0, false, fmt.Errorf("read starts: %w", err)
		}
		d.start = before + 1
	}
	var n int32
	if err := st.pool.QueryRow(ctx, st.sql.start, st.c.Consumer, d.e.Source, d.e.ID, d.start).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count start: %w", err)
	}
	return int(n), false, nil
}

// takeBack takes a counted start back: the process survived, and nothing was decided. If the database is away for too long, the
// start stays counted.
func (st *starts) takeBack(ctx context.Context, d *delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	for wait := 0; ; wait++ {
		_, err := st.pool.Exec(ctx, st.sql.takeBackStart, st.c.Consumer, d.e.Source, d.e.ID, d.start)
		if err == nil {
			d.start = 0
			return
		}
		st.transient(fmt.Errorf("take start back: %w", err))
		if pause(ctx, spread(databaseBase, databaseCap, wait+1, st.random())) != nil {
			return
		}
	}
}

// forget removes the count of an event that has come to an end.
func (st *starts) forget(ctx context.Context, tx pgx.Tx, d *delivery) error {
	if d.start == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, st.sql.forgetStart, st.c.Consumer, d.e.Source, d.e.ID); err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	return nil
}
