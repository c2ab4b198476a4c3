package inbox

import (
	"context"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/jackc/pgx/v5"
)

// This file is what one transaction does with an event that is new: its row, its handler, what follows of it.

// admission records an event in a transaction that is open, and runs its handler.
type admission struct {
	*env
	runner *runner
	ledger *ledger
	queues *queues
}

// take records the event and runs its handler, in the caller's transaction.
func (a *admission) take(ctx context.Context, tx pgx.Tx, d *delivery, attempt int) (Outcome, error) {
	b := &pgx.Batch{}
	a.ledger.queueInsert(b, d, attempt)
	br := tx.SendBatch(ctx, b)
	result, err := readInsert(br)
	if closing := br.Close(); err == nil && closing != nil {
		err = closing
	}
	return a.taken(ctx, tx, d, result, err)
}

// taken goes on behind the insert of the event's row: result is what it recorded.
func (a *admission) taken(ctx context.Context, tx pgx.Tx, d *delivery, result string, err error) (Outcome, error) {
	switch {
	case err != nil:
		return "", err
	case result == "": // Known, or another node has the partition by now.
		if d.from != nil {
			if err := d.from.fence.check(ctx, a.env, tx); err != nil {
				return "", err
			}
		}
		return a.ledger.known(ctx, tx, d)
	case result == "stored": // Behind earlier events of its key.
		return a.queues.queue(ctx, tx, d, past{}, nil, Stored, true)
	}
	failpoint.Hit(failpoint.InboxInserted)
	err = a.runner.handle(ctx, tx, d.h, []holdfast.Event{d.e}, func() error { return a.ledger.forget(ctx, tx, d) })
	return Handled, err
}
