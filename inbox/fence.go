package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
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
		return errFenced
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
		return errFenced
	}
	return nil
}

// fences raises epochs.
type fences struct {
	*env
	runner *runner
}

// assign raises the epoch once every transaction of the last owner has ended, and chooses where to read from.
func (fs *fences) assign(ctx context.Context, topic string, partition int, choose func(position int64) (reading, error)) (assignment, error) {
	f := &fence{Assignment: Assignment{Topic: topic, Partition: partition}}
	f.number = lane.Number(fs.c.Schema, fs.c.Consumer, topic, fmt.Sprint(partition))
	a := assignment{fence: f}
	var refused error
	err := fs.runner.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fs.sql.lock, int32(fenceClass), f.number); err != nil {
			return fmt.Errorf("take fence of %s/%d: %w", topic, partition, err)
		}
		// Before the row: a node that waits here for another's token must not hold what a save waits for.
		if _, err := tx.Exec(ctx, fs.sql.renew); err != nil {
			return fmt.Errorf("refill the incarnation: %w", err)
		}
		// The row is locked from here on. A save by the last owner comes before, or finds that the partition is lost.
		position, clean := int64(NoOffset), true
		err := tx.QueryRow(ctx, fs.sql.position, fs.c.Consumer, topic, int32(partition)).Scan(&position, &clean)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read position of %s/%d: %w", topic, partition, err)
		}
		if a.reading, refused = choose(position); refused != nil {
			return refused
		}
		a.unclean = !clean
		f.position = a.reading.position
		err = tx.QueryRow(ctx, fs.sql.assign, fs.c.Consumer, topic, int32(partition), a.reading.position, fs.node).Scan(&f.Epoch, &f.token)
		if err != nil {
			return fmt.Errorf("raise epoch of %s/%d: %w", topic, partition, err)
		}
		failpoint.Hit(failpoint.InboxAssigning)
		return nil
	})
	var beyond *beyondEnd
	if errors.As(refused, &beyond) {
		table := sqlschema.In(fs.c.Schema, "holdfast.consumer_position")
		row := fmt.Sprintf("consumer = %s and topic = %s and partition = %d", quoted(fs.c.Consumer), quoted(topic), partition)
		refused = fmt.Errorf("%w: %s", refused, beyond.remedy(table, row))
	}
	if refused != nil {
		return assignment{}, fmt.Errorf("read %s/%d: %w", topic, partition, refused)
	}
	return a, err
}

// assignment is what Postgres holds for a partition that the group gave to this node.
type assignment struct {
	fence   *fence
	reading reading
	unclean bool // the last owner did not release it
}

// quoted is text as an SQL literal, for statements that a person runs.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
