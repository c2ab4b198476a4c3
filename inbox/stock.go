package inbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file keeps the events that wait within bounds, so that a key that nobody attends to cannot fill the database.

// countEvery is how old a count of all that is stored may be.
const countEvery = 3 * time.Second

// stock is how many events of the consumer are stored, about.
type stock struct {
	mu      sync.Mutex
	events  int
	counted time.Time
}

// fits says, by an error that wraps ErrFull, that one more event must not be stored. It is called in the transaction that
// would store it, under the lock of its key.
func (in *Inbox) fits(ctx context.Context, tx pgx.Tx, topic, key string) error {
	if limit := in.c.MaxStoredKey; key != "" && limit > 0 {
		var length int
		if err := tx.QueryRow(ctx, in.q.queueLength, in.c.Consumer, topic, key, int32(min(limit, 1<<30))).Scan(&length); err != nil {
			return fmt.Errorf("measure the key's queue: %w", err)
		}
		if length >= limit {
			return fmt.Errorf("%w: %d events of one key of %s wait, and MaxStoredKey is %d: see to the first of them (holdfast status), or raise the limit",
				ErrFull, length, topic, limit)
		}
	}
	limit := in.c.MaxStored
	if limit < 0 {
		return nil
	}
	in.stock.mu.Lock()
	known, fresh := in.stock.events, time.Since(in.stock.counted) < countEvery
	in.stock.mu.Unlock()
	if !fresh {
		if err := tx.QueryRow(ctx, in.q.storedCount, in.c.Consumer, int32(min(limit, 1<<30))).Scan(&known); err != nil {
			return fmt.Errorf("count what is stored: %w", err)
		}
	}
	in.stock.mu.Lock()
	defer in.stock.mu.Unlock()
	if !fresh {
		in.stock.events, in.stock.counted = known, time.Now()
	}
	if in.stock.events >= limit {
		return fmt.Errorf("%w: %d events of the consumer wait, and MaxStored is %d: see to what fails (holdfast status), or raise the limit",
			ErrFull, in.stock.events, limit)
	}
	in.stock.events++
	return nil
}
