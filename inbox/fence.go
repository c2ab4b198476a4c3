package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Advisory locks are all locks of a transaction, in the form of two numbers: a class of ours and a hash of what is
// locked. lane.LockClass ("hfdf") orders the writers of a key, lane.KeyClass ("hfky") the changes to the queue of a key,
// and fenceClass, "hfpt" in ASCII, is the fence of a partition. Two things that share a number wait for each other, no
// more.
const fenceClass = 0x68667074

// errFenced says that another node has been given the partition.
var errFenced = errors.New("another node has the partition")

// fence is this node's right to a partition: the epoch that it raised when the group gave it the partition.
//
// Every transaction that takes an event of the partition in holds the lock shared, and looks at the epoch in a later
// statement, whose snapshot is newer than the lock. Whoever is given the partition next takes the lock exclusively
// before it raises the epoch: so it waits for every transaction that has looked, and those that look later see that
// they are too late. The workers of one owner do not wait for each other.
type fence struct {
	Assignment
	number   int32
	position int64  // at the assignment: what lies below was settled then
	token    string // of the database's incarnation at the assignment
}

// queue adds the two statements to the first batch of a transaction.
func (f *fence) queue(env *env, b *pgx.Batch) {
	b.Queue(env.sql.fenceShared, int32(fenceClass), f.number)
	b.Queue(env.sql.fenceCheck, env.c.Consumer, f.Topic, int32(f.Partition), f.Epoch)
}

// read reads their answers.
func (f *fence) read(br pgx.BatchResults) error {
	if _, err := br.Exec(); err != nil {
		return fmt.Errorf("take fence: %w", err)
	}
	var mine bool
	if err := br.QueryRow().Scan(&mine); err != nil {
		return fmt.Errorf("look at epoch: %w", err)
	}
	if !mine {
		return errFenced
	}
	return nil
}

// check looks at the epoch alone, where the lock is held already.
func (f *fence) check(ctx context.Context, env *env, tx pgx.Tx) error {
	var mine bool
	if err := tx.QueryRow(ctx, env.sql.fenceCheck, env.c.Consumer, f.Topic, int32(f.Partition), f.Epoch).Scan(&mine); err != nil {
		return fmt.Errorf("look at epoch: %w", err)
	}
	if !mine {
		return errFenced
	}
	return nil
}
