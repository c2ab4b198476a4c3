package inbox

import (
	"context"
	"fmt"
	"time"
)

// This file finds out that Postgres went back in time under a running consumer: a crash with synchronous_commit = off, or
// a failover to an asynchronous standby, takes back the last transactions, and effects with them that this node holds for
// settled. No offset may be saved on the strength of those. The unlogged table incarnation is empty after either: a fence
// keeps the token that it was raised under, and a position is saved only while the table has that one.
//
// Transactions of events need not look. Those before the crash that are lost lie at or above the position that Postgres
// has now, and those after it are durable again. What the node adds up from both is refused as a whole, and the partition
// is read again from Postgres's position: what has a row is a duplicate, what was lost is handled.

// lookEvery is how often the token is looked at where no position moves: else what a quiet partition lost would wait for
// its next event.
const lookEvery = time.Second

// errStaleGeneration ends a generation as being fenced does: the group is joined anew.
var errStaleGeneration = fmt.Errorf("the database came back from a crash or a failover and may have lost its last transactions: %w", errFenced)

// renewIncarnation fills the table after a crash emptied it. Of many nodes the first does.
func (env *env) renewIncarnation(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	if _, err := env.pool.Exec(ctx, env.sql.renew); err != nil {
		return fmt.Errorf("refill the incarnation: %w", err)
	}
	return nil
}
