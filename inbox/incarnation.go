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

// errOutlived ends a generation as being fenced does: the group is joined anew.
var errOutlived = fmt.Errorf("the database came back from a crash or a failover and may have lost its last transactions: %w", errFenced)

// renew fills the table after a crash emptied it. Of many nodes the first does.
func (in *Inbox) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	if _, err := in.pool.Exec(ctx, in.sql.renew); err != nil {
		return fmt.Errorf("refill the incarnation: %w", err)
	}
	return nil
}

// look gives up the partitions that we were given in another incarnation of the database.
func (in *Inbox) look(ctx context.Context, parts []*partition) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	var token string
	if err := in.pool.QueryRow(ctx, in.sql.incarnation).Scan(&token); err != nil {
		return fmt.Errorf("read the incarnation: %w", err)
	}
	for _, p := range parts {
		p.mu.Lock()
		old := p.fence != nil && p.fence.token != token
		p.mu.Unlock()
		if old {
			p.outlived()
		}
	}
	return nil
}

// outlived gives the partition up, to be given it again with the position that Postgres has now.
func (p *partition) outlived() {
	first, settled := p.lose(errOutlived)
	if !first {
		return
	}
	p.in.c.Logger.Warn("the database came back from a crash or a failover: the partition is read again from the position it has now",
		"consumer", p.in.c.Consumer, "topic", p.tp.Topic, "partition", p.tp.Partition, "epoch", p.fence.Epoch, "settled", settled)
	if p.in.c.Observer.OnError != nil {
		p.in.c.Observer.OnError(fmt.Errorf("%s/%d: %w", p.tp.Topic, p.tp.Partition, errOutlived))
	}
}
