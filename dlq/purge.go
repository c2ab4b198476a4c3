package dlq

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PurgeOptions say what Purge removes.
type PurgeOptions struct {
	// OlderThan is how long ago a letter must have been closed: handled or published after its replay, or discarded. By the
	// database's clock. It should be longer than a redelivery can be late (inbox.Config.Retention), because the payloads
	// before an edit go with the letter. At least a minute. Required.
	OlderThan time.Duration

	// DryRun counts the letters that would be removed, and changes nothing.
	DryRun bool

	// Batch is how many letters one transaction removes. Between 1 and 10,000. Defaults to 1,000.
	Batch int

	// ProgressFunc is called in line after each batch with how many letters are removed so far. Defaults to nothing.
	ProgressFunc func(removed int)
}

// Purge removes letters that were replayed or discarded long enough ago, with what was done to them, and returns how
// many. A letter that is open or being replayed is never removed. It works in batches of one short transaction each: it
// may be cancelled or break off, and may run on several nodes at once; what they are at is passed over.
func (d *DLQ) Purge(ctx context.Context, o PurgeOptions) (int, error) {
	switch {
	case o.OlderThan < time.Minute:
		return 0, fmt.Errorf("purge letters: older than is %s: at least 1m: say how long closed letters are kept", o.OlderThan)
	case o.Batch < 0 || o.Batch > 10_000:
		return 0, fmt.Errorf("purge letters: batch is %d: between 1 and 10,000, or 0 for 1,000", o.Batch)
	case o.Batch == 0:
		o.Batch = 1000
	}
	age := o.OlderThan.Microseconds()
	var total int
	if o.DryRun {
		if err := d.pool.QueryRow(ctx, d.sql.countPurge, age).Scan(&total); err != nil {
			return 0, fmt.Errorf("count letters to purge: %w", explain(err))
		}
		return total, nil
	}
	for {
		removed, err := d.purge(ctx, d.sql.purge, age, int32(o.Batch))
		if err != nil {
			return total, fmt.Errorf("purge letters: %w", explain(err))
		}
		if total += removed; removed > 0 && o.ProgressFunc != nil {
			o.ProgressFunc(total)
		}
		if removed < o.Batch {
			break
		}
	}
	if _, err := d.purge(ctx, d.sql.purgeReplays, age); err != nil {
		return total, fmt.Errorf("purge replays: %w", explain(err))
	}
	return total, nil
}

func (d *DLQ) purge(ctx context.Context, sql string, args ...any) (removed int, err error) {
	err = pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{BeginQuery: beginGuarded}, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		removed = int(tag.RowsAffected())
		return err
	})
	return removed, err
}
