package position

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file is the fence of a partition. A new owner raises the partition's epoch; no transaction of the last owner can commit
// after that.

// All advisory locks belong to a transaction and have two numbers: a class, and a hash of what is locked. The class
// lane.LockClass ("hfdf") orders the writers of a key, lane.KeyClass ("hfky") orders changes to a key's queue, and FenceClass
// ("hfpt" in ASCII) is the fence of a partition. Two locks that share a number wait for each other, which does no harm.
const FenceClass int32 = 0x68667074

// Claim is a partition, with the epoch under which a node has it.
type Claim struct {
	Topic     string
	Partition int
	Epoch     int64
}

// Fence is this node's right to a partition: the epoch that it raised when the group gave it the partition.
//
// Every transaction that takes in an event of the partition holds the lock shared. It reads the epoch in a later statement,
// whose snapshot is newer than the lock. The partition's next owner takes the lock exclusively before it raises the epoch.
// So it waits for every transaction that has read the epoch, and later ones see that the partition is lost. The workers of
// one owner do not wait for each other.
type Fence struct {
	Claim
	Number   int32  // of its lock, in FenceClass
	Position int64  // at the assignment; every offset below it was settled then
	Token    string // the database's incarnation at the assignment
}

// Queue adds the fence's two statements to the first batch of a transaction.
func (t *Table) Queue(f *Fence, b *pgx.Batch) {
	b.Queue(t.SQL.FenceShared, FenceClass, f.Number)
	b.Queue(t.SQL.FenceCheck, t.Consumer, f.Topic, int32(f.Partition), f.Epoch)
}

// Read reads the answers to Queue. It returns failure.ErrFenced if the partition is another's.
func (t *Table) Read(br pgx.BatchResults) error {
	if _, err := br.Exec(); err != nil {
		return fmt.Errorf("take fence: %w", err)
	}
	return mine(br.QueryRow())
}

// Check reads the epoch alone. The transaction holds the lock. It returns failure.ErrFenced if the partition is another's.
func (t *Table) Check(ctx context.Context, tx pgx.Tx, f *Fence) error {
	return mine(tx.QueryRow(ctx, t.SQL.FenceCheck, t.Consumer, f.Topic, int32(f.Partition), f.Epoch))
}

// mine reads the answer to FenceCheck.
func mine(row pgx.Row) error {
	var mine bool
	if err := row.Scan(&mine); err != nil {
		return fmt.Errorf("read epoch: %w", err)
	}
	if !mine {
		return failure.ErrFenced
	}
	return nil
}

// waitingMost is how many connections of the pool may wait for the last owners of partitions: a quarter. The others are for the
// partitions whose last owners have ended.
func waitingMost(pool *pgxpool.Pool) int {
	if pool == nil {
		return 1
	}
	return max(1, int(pool.Config().MaxConns)/4)
}

// Assign raises the epoch once every transaction of the last owner has ended, and chooses where to read from. A dead owner's
// transaction may last. So a partition waits in the lock's queue only while few others do. Otherwise it looks again and again,
// and has no connection between two looks. One that waits in the queue keeps new transactions of the last owner out; without
// that, an owner that does not know that it lost the partition could go on for ever.
func (t *Table) Assign(ctx context.Context, topic string, partition int, group string, choose func(position int64) (Reading, error)) (Assigned, error) {
	a, err := t.raise(ctx, topic, partition, group, false, choose)
	for look := 1; errors.Is(err, errFenceTaken); look++ {
		timer := time.NewTimer(loop.Spread(loop.DatabaseBase, fenceLook, look, t.Random()))
		select {
		case t.waiting <- struct{}{}:
			a, err = t.raise(ctx, topic, partition, group, true, choose)
			<-t.waiting
		case <-timer.C:
			a, err = t.raise(ctx, topic, partition, group, false, choose)
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
	}
	return a, err
}

// fenceLook is how often a partition at least looks whether its last owner's transactions have ended.
const fenceLook = time.Second

// errFenceTaken means that a transaction of the last owner has not ended.
var errFenceTaken = errors.New("a transaction of the partition's last owner has not ended")

// raise is one try of Assign. Unless it may wait, it returns errFenceTaken if the lock is taken.
func (t *Table) raise(ctx context.Context, topic string, partition int, group string, wait bool, choose func(position int64) (Reading, error)) (Assigned, error) {
	f := &Fence{Claim: Claim{Topic: topic, Partition: partition}}
	f.Number = lane.Number(t.Schema, t.Consumer, topic, fmt.Sprint(partition))
	a := Assigned{Fence: f}
	var refused error
	err := t.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := t.lock(ctx, tx, f, wait); err != nil {
			return fmt.Errorf("take fence of %s/%d: %w", topic, partition, err)
		}
		// Before the row: a node that waits here for another's token must not hold what a save waits for.
		if err := t.renew(ctx, tx); err != nil {
			return err
		}
		// The row is locked from here on. A save by the last owner comes before, or finds that the partition is lost.
		position, clean, last := int64(source.NoOffset), true, ""
		err := tx.QueryRow(ctx, t.SQL.Position, t.Consumer, topic, int32(partition)).Scan(&position, &clean, &last)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read position of %s/%d: %w", topic, partition, err)
		}
		if a.Reading, refused = choose(position); refused != nil {
			return refused
		}
		a.Unclean = !clean
		if !clean && group != "" && last != group {
			a.OtherGroup = last
		}
		f.Position = a.Reading.Position
		err = tx.QueryRow(ctx, t.SQL.Assign, t.Consumer, topic, int32(partition), a.Reading.Position, t.Node, group).Scan(&f.Epoch, &f.Token)
		if err != nil {
			return fmt.Errorf("raise epoch of %s/%d: %w", topic, partition, err)
		}
		failpoint.Hit(failpoint.InboxAssigning)
		return nil
	})
	if refused != nil {
		return Assigned{}, fmt.Errorf("read %s/%d: %w", topic, partition, t.Remedied(refused, topic, partition))
	}
	return a, err
}

// lock takes a partition's lock exclusively.
func (t *Table) lock(ctx context.Context, tx pgx.Tx, f *Fence, wait bool) error {
	if wait {
		_, err := tx.Exec(ctx, t.SQL.Fence, FenceClass, f.Number)
		return err
	}
	var free bool
	err := tx.QueryRow(ctx, t.SQL.TryFence, FenceClass, f.Number).Scan(&free)
	if err == nil && !free {
		return errFenceTaken
	}
	return err
}

// Assigned is what Postgres holds for a partition that the group gave to this node.
type Assigned struct {
	Fence   *Fence
	Reading Reading
	Unclean bool // the last owner did not release it

	OtherGroup string // the last owner's group, if it is known not to be ours and the last owner did not release the partition
}
