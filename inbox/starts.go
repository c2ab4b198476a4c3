package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file counts, after an unclean end, how often the handler of an event was started.

// starts are the counts in the table start.
type starts struct{ *env }

// suspects reads which of these events were started before and never came to an end: one of them may have ended its process.
func (st *starts) suspects(ctx context.Context, ds []*delivery) error {
	sources, ids, _ := counted(ds)
	rows, err := st.pool.Query(ctx, st.sql.starts, st.c.Consumer, sources, ids)
	if err != nil {
		return fmt.Errorf("read starts: %w", err)
	}
	var n, before int32
	if _, err = pgx.ForEachRow(rows, []any{&n, &before}, func() error {
		ds[n-1].suspect = before > 0
		return nil
	}); err != nil {
		return fmt.Errorf("read starts: %w", err)
	}
	return nil
}

// countAll counts that the handlers of many events are about to start, as d.start says, in one statement.
func (st *starts) countAll(ctx context.Context, ds []*delivery) error {
	sources, ids, numbers := counted(ds)
	if _, err := st.pool.Exec(ctx, st.sql.start, st.c.Consumer, sources, ids, numbers); err != nil {
		return fmt.Errorf("count starts: %w", err)
	}
	return nil
}

// count counts that the handler of a suspect is about to start, and commits that first. It does not count an event that is known
// already, since no handler will run. Called again because an answer was lost, it counts the same start.
func (st *starts) count(ctx context.Context, d *delivery) (starts int, known bool, err error) {
	var hash []byte
	var result string
	err = st.pool.QueryRow(ctx, st.sql.known, st.c.Consumer, d.e.Source, d.e.ID).Scan((*plain.Bytes)(&hash), &result)
	if err == nil {
		return 0, true, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, false, fmt.Errorf("read inbox row: %w", err)
	}
	if d.start == 0 {
		var n, before int32
		err := st.pool.QueryRow(ctx, st.sql.starts, st.c.Consumer, []string{d.e.Source}, []string{d.e.ID}).Scan(&n, &before)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return 0, false, fmt.Errorf("read starts: %w", err)
		}
		d.start = before + 1
	}
	if err := st.countAll(ctx, []*delivery{d}); err != nil {
		return 0, false, err
	}
	return int(d.start), false, nil
}

// takeBack takes counted starts back: the process survived, and nothing was decided. If the database is away for too long, the
// starts stay counted.
func (st *starts) takeBack(ctx context.Context, ds ...*delivery) {
	sources, ids, numbers := counted(ds)
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	for wait := 0; ; wait++ {
		_, err := st.pool.Exec(ctx, st.sql.takeBackStart, st.c.Consumer, sources, ids, numbers)
		if err == nil {
			for _, d := range ds {
				d.start = 0
			}
			return
		}
		st.transient(fmt.Errorf("take starts back: %w", err))
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, st.random())) != nil {
			return
		}
	}
}

// forget removes the counts of events that have come to an end. It does nothing if none was counted.
func (st *starts) forget(ctx context.Context, tx pgx.Tx, ds ...*delivery) error {
	var of []*delivery
	for _, d := range ds {
		if d.start > 0 {
			of = append(of, d)
		}
	}
	if len(of) == 0 {
		return nil
	}
	sources, ids, _ := counted(of)
	if _, err := tx.Exec(ctx, st.sql.forgetStart, st.c.Consumer, sources, ids); err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	return nil
}

// counted is what names the events in the table start, and their counts.
func counted(ds []*delivery) (sources, ids []string, numbers []int32) {
	for _, d := range ds {
		sources, ids, numbers = append(sources, d.e.Source), append(ids, d.e.ID), append(numbers, d.start)
	}
	return sources, ids, numbers
}
