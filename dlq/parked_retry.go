package dlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file has relays try at once what they have parked.

// ErrPaused says that a topic is paused, so that none of its events is tried. The error of RetryParked wraps it.
var ErrPaused = errors.New("the topic is paused")

// RetryParked has relays try what is parked of a topic, or of one key of it, at once instead of after the next wait. It returns how
// many events were made due that waited for their next attempt. If the topic or a partition of it is held, the next event that
// waits for it is tried too: if that is published, all others follow. Use it once the cause is fixed. Attempts stay as they are.
//
// With ParkedFilter.Partition the lanes are those that have something for this partition. Each tries all that it holds: one event of each
// other topic or partition too.
//
// It works beside running relays: each lane that has something of the topic is handed over for a moment, as GiveUpParked explains. Then
// its relay loads what is held, and tries it at once. The table pause_action keeps who did it and why.
//
// The error wraps ErrNotParked if nothing is parked, and ErrPaused if the topic is paused: Resume has everything tried.
func (d *DLQ) RetryParked(ctx context.Context, f ParkedFilter, o ParkedOptions) (int, error) {
	n, err := d.retryParked(ctx, f, o)
	if err != nil {
		return n, fmt.Errorf("retry parked events: %w", err)
	}
	return n, nil
}

func (d *DLQ) retryParked(ctx context.Context, f ParkedFilter, o ParkedOptions) (n int, err error) {
	err = f.validate()
	if !o.DryRun {
		err = errors.Join(err, signature(o.By, o.Reason))
	}
	if err != nil {
		return 0, err
	}
	var paused bool
	if err := d.pool.QueryRow(ctx, d.sql.topicIsPaused, f.Topic).Scan(&paused); err != nil {
		return 0, fmt.Errorf("look whether the topic is paused: %w", explain(err))
	}
	if paused {
		return 0, fmt.Errorf("%w: %s", ErrPaused, f.Topic)
	}
	lanes, err := d.parkedLanes(ctx, f)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, w := range lanes {
		total += w.events
	}
	if total == 0 {
		return 0, f.notParked()
	}
	for _, w := range lanes {
		due, err := d.retryLane(ctx, w.lane, f, o.DryRun)
		if err != nil {
			return n, fmt.Errorf("lane %d: %w", w.lane, explain(err))
		}
		if n += due; o.ProgressFunc != nil {
			o.ProgressFunc(ParkedProgress{Moved: n, Total: total})
		}
	}
	if o.DryRun {
		return n, nil
	}
	reason := o.Reason
	if f.Partition != nil {
		reason = fmt.Sprintf("partition %d: %s", *f.Partition, reason)
	}
	err = d.transact(ctx, func(tx pgx.Tx) error {
		return d.recordPause(ctx, tx, "retry", Pausable{Topic: f.Topic, Key: f.Key}, o.By, reason)
	})
	if err != nil {
		return n, explain(err)
	}
	return n, nil
}

// retryLane makes due what a filter selects in a lane, which its relay loads anew then, and returns how many.
func (d *DLQ) retryLane(ctx context.Context, lane int16, f ParkedFilter, dryRun bool) (n int, err error) {
	if dryRun {
		err := d.pool.QueryRow(ctx, d.sql.countRetry, lane, f.Topic, f.Key, f.partition()).Scan(&n)
		return n, err
	}
	err = d.transact(ctx, func(tx pgx.Tx) error {
		if _, err := d.takeLane(ctx, tx, lane); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, d.sql.retryParked, lane, f.Topic, f.Key, f.partition())
		n = int(tag.RowsAffected())
		return err
	})
	return n, err
}
