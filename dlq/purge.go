package dlq

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// PurgeOptions say what Purge removes.
type PurgeOptions struct {
	// OlderThan is how long ago, by the database's clock, a letter must have been closed: replayed successfully, or
	// discarded. Make it longer than a redelivery can be late (inbox.Config.Retention), because payloads from before an
	// edit are removed with the letter. At least one minute. Required.
	OlderThan time.Duration

	// DryRun counts the letters that would be removed, and changes nothing.
	DryRun bool

	// Batch is how many letters one transaction removes. Between 1 and 10,000. Defaults to 1,000.
	Batch int

	// ProgressFunc is called inline after each batch, with the number of letters removed so far. Defaults to none.
	ProgressFunc func(removed int)
}

// Purge removes letters that were closed long enough ago, and returns how many. It never removes a letter that is open or
// being replayed. What was done to the letters stays (Actions), without the payloads that edits replaced. It works in batches of one short transaction each. You may cancel it, and
// several nodes may run it at once; it skips letters that another session has locked.
func (d *DLQ) Purge(ctx context.Context, o PurgeOptions) (int, error) {
	switch {
	case o.OlderThan < time.Minute:
		return 0, fmt.Errorf("purge letters: older than is %s: it must be at least 1m", o.OlderThan)
	case o.Batch < 0 || o.Batch > 10_000:
		return 0, fmt.Errorf("purge letters: batch is %d: it must be between 1 and 10000, or 0 for 1000", o.Batch)
	case o.Batch == 0:
		o.Batch = 1000
	}
	age := o.OlderThan.Microseconds()
	var total int
	if o.DryRun {
		if err := d.pool.QueryRow(ctx, d.sql.countPurge, age).Scan(&total); err != nil {
			return 0, fmt.Errorf("count letters to purge: %w", manual.Explain(err))
		}
		return total, nil
	}
	for {
		removed, err := d.purge(ctx, age, int32(o.Batch))
		if err != nil {
			return total, fmt.Errorf("purge letters: %w", manual.Explain(err))
		}
		if total += removed; removed > 0 && o.ProgressFunc != nil {
			o.ProgressFunc(total)
		}
		if removed < o.Batch {
			return total, nil
		}
	}
}

func (d *DLQ) purge(ctx context.Context, age int64, batch int32) (removed int, err error) {
	err = manual.Transact(ctx, d.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, d.sql.purge, age, batch).Scan(&removed)
	})
	return removed, err
}
