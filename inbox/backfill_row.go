package inbox

import (
	"context"
	"fmt"
	"time"
)

// This file writes the progress of ConsumeUntil into the table consumer_backfill, for holdfast status and the console.

// writeEvery is how often. After 30 s without a word (writeBackfillSQL, holdfast status, the console) no node counts as running it.
const writeEvery = 5 * time.Second

// writeBackfill writes a progress; ended says that the call has ended, with end or at its bound. While another node tells its own, nothing
// is written: both count the same partitions.
func (env *env) writeBackfill(ctx context.Context, p Progress, ended bool, end error) error {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	why := ""
	if end != nil {
		why = loggedError(end)
	}
	if _, err := env.pool.Exec(ctx, env.sql.writeBackfill, env.c.Consumer, env.node, p.For.Microseconds(), int32(len(p.Partitions)), int32(p.partitionsLeft()),
		p.Done, p.Left, p.Rate, p.Waits, ended, why); err != nil {
		return fmt.Errorf("write the progress of a backfill: %w", err)
	}
	return nil
}
