package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file notices that Postgres went back in time while a consumer runs. A crash with synchronous_commit = off, or a failover
// to an asynchronous standby, undoes the last transactions, with effects that this node believes to be settled. No offset may
// be saved on such a belief. The unlogged table incarnation is empty after either event, and the view current_incarnation has
// another token whenever the server has started anew, as after a cold copy was put back. So a fence keeps the token that the
// view had when the fence was raised, and a position is saved only while the view still has that token.
//
// Transactions of events need not look. Those that were lost lie at or above the position that Postgres has now, and later
// ones are durable again. What the node computed from both is refused as a whole, and the partition is read again from
// Postgres's position. An event with a row is a duplicate; one that was lost is handled.

// lookEvery is how often the token is read while no position moves. Otherwise what a quiet partition lost would wait for its
// next event.
const lookEvery = time.Second

// errStaleGeneration ends a generation, as fencing does: the node joins the group again.
var errStaleGeneration = fmt.Errorf("the database came back from a crash or a failover and may have lost its last transactions: %w", failure.ErrFenced)

// renewIncarnation fills the table after a crash has emptied it. The first of many nodes does.
func (env *env) renewIncarnation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	if _, err := env.pool.Exec(ctx, env.sql.renew); err != nil {
		return fmt.Errorf("refill the incarnation: %w", err)
	}
	return nil
}
