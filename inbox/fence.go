package inbox

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
// lane.LockClass ("hfdf") orders the writers of a key, lane.KeyClass ("hfky") orders changes to a key's queue, and fenceClass
// ("hfpt" in ASCII) is the fence of a partition. Two locks that share a number wait for each other, which does no harm.
const fenceClass = 0x68667074

// fence is this node's right to a partition: the epoch that it raised when the group gave it the partition.
//
// Every transaction that takes in an event of the partition holds the lock shared. It reads the epoch in a later statement,
// whose snapshot is newer than the lock. The partition's next owner takes the lock exclusively before it raises the epoch.
// So it waits for every transaction that has read the epoch, and later ones see that the partition is lost. The workers of
// one owner do not wait for each other.
type fence struct {
	Assignment
	number   int32
	position int64  // at the assignment; every offset below it was settled then
	token    string // the database's incarnation at the assignment
}

// queue adds the fence's two statements to the first batch of a transaction.
func (f *fence) queue(env *env, b *pgx.Batch) {
	b.Queue(env.sql.fenceShared, int32(fenceClass), f.number)
	b.Queue(env.sql.fenceCheck, env.c.Consumer, f.Topic, int32(f.Partition), f.Epoch)
}

// read reads the answers to queue.
func (f *fence) read(br pgx.BatchResults) error {
	if _, err := br.Exec(); err != nil {
		return fmt.Errorf("take fence: %w", err)
	}
	var mine bool
	if err := br.QueryRow().Scan(&mine); err != nil {
		return fmt.Errorf("read epoch: %w", err)
	}
	if !mine {
		return failure.ErrFenced
	}
	return nil
}

// check reads the epoch alone. The transaction holds the lock.
func (f *fence) check(ctx context.Context, env *env, tx pgx.Tx) error {
	var mine bool
	if err := tx.QueryRow(ctx, env.sql.fenceCheck, env.c.Consumer, f.Topic, int32(f.Partition), f.Epoch).Scan(&mine); err != nil {
		return fmt.Errorf("read epoch: %w", err)
	}
	if !mine {
		return failure.ErrFenced
	}
	return nil
}

// fences raises epochs.
type fences struct {
	*env
	runner  *runner
	waiting chan struct{} // one for each partition that waits for its last owner's transactions with a connection; full at the most
}

func newFences(env *env, rn *runner) *fences {
	return &fences{env: env, runner: rn, waiting: make(chan struct{}, waitingMost(env.pool))}
}

// waitingMost is how many connections of the pool may wait for the last owners of partitions: a quarter. The others are for the
// partitions whose last owners have ended.
func waitingMost(pool *pgxpool.Pool) int {
	if pool == nil {
		return 1
	}
	return max(1, int(pool.Config().MaxConns)/4)
}

// assign raises the epoch once every transaction of the last owner has ended, and chooses where to read from. A dead owner's
// transaction may last. So a partition waits in the lock's queue only while few others do. Otherwise it looks again and again,
// and has no connection between two looks. One that waits in the queue keeps new transactions of the last owner out; without
// that, an owner that does not know that it lost the partition could go on for ever.
func (fs *fences) assign(ctx context.Context, topic string, partition int, group string, choose func(position int64) (reading, error)) (assignment, error) {
	a, err := fs.raise(ctx, topic, partition, group, false, choose)
	for look := 1; errors.Is(err, errFenceTaken); look++ {
		t := time.NewTimer(loop.Spread(loop.DatabaseBase, fenceLook, look, fs.random()))
		select {
		case fs.waiting <- struct{}{}:
			a, err = fs.raise(ctx, topic, partition, group, true, choose)
			<-fs.waiting
		case <-t.C:
			a, err = fs.raise(ctx, topic, partition, group, false, choose)
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.Stop()
	}
	return a, err
}

// fenceLook is how often a partition at least looks whether its last owner's transactions have ended.
const fenceLook = time.Second

// errFenceTaken means that a transaction of the last owner has not ended.
var errFenceTaken = errors.New("a transaction of the partition's last owner has not ended")

// raise is one try of assign. Unless it may wait, it returns errFenceTaken if the lock is taken.
func (fs *fences) raise(ctx context.Context, topic string, partition int, group string, wait bool, choose func(position int64) (reading, error)) (assignment, error) {
	f := &fence{Assignment: Assignment{Topic: topic, Partition: partition}}
	f.number = lane.Number(fs.c.Schema, fs.c.Consumer, topic, fmt.Sprint(partition))
	a := assignment{fence: f}
	var refused error
	err := fs.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := fs.lock(ctx, tx, f, wait); err != nil {
			return fmt.Errorf("take fence of %s/%d: %w", topic, partition, err)
		}
		// Before the row: a node that waits here for another's token must not hold what a save waits for.
		if _, err := tx.Exec(ctx, fs.sql.renew); err != nil {
			return fmt.Errorf("refill the incarnation: %w", err)
		}
		// The row is locked from here on. A save by the last owner comes before, or finds that the partition is lost.
		position, clean, last := int64(source.NoOffset), true, ""
		err := tx.QueryRow(ctx, fs.sql.position, fs.c.Consumer, topic, int32(partition)).Scan(&position, &clean, &last)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read position of %s/%d: %w", topic, partition, err)
		}
		if a.reading, refused = choose(position); refused != nil {
			return refused
		}
		a.unclean = !clean
		if !clean && group != "" && last != group {
			a.otherGroup = last
		}
		f.position = a.reading.position
		err = tx.QueryRow(ctx, fs.sql.assign, fs.c.Consumer, topic, int32(partition), a.reading.position, fs.node, group).Scan(&f.Epoch, &f.token)
		if err != nil {
			return fmt.Errorf("raise epoch of %s/%d: %w", topic, partition, err)
		}
		failpoint.Hit(failpoint.InboxAssigning)
		return nil
	})
	if refused != nil {
		return assignment{}, fmt.Errorf("read %s/%d: %w", topic, partition, remedied(refused, fs.c, topic, partition))
	}
	return a, err
}

// lock takes a partition's lock exclusively.
func (fs *fences) lock(ctx context.Context, tx pgx.Tx, f *fence, wait bool) error {
	if wait {
		_, err := tx.Exec(ctx, fs.sql.lock, int32(fenceClass), f.number)
		return err
	}
	var free bool
	err := tx.QueryRow(ctx, fs.sql.tryLock, int32(fenceClass), f.number).Scan(&free)
	if err == nil && !free {
		return errFenceTaken
	}
	return err
}

// assignment is what Postgres holds for a partition that the group gave to this node.
type assignment struct {
	fence   *fence
	reading reading
	unclean bool // the last owner did not release it

	otherGroup string // the last owner's group, if it is known not to be ours and the last owner did not release the partition
}
