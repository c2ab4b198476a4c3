// Package position keeps in Postgres where a consumer stands in each of Kafka's partitions, and which node may move it.
//
//	position.go  a consumer's rows of consumer_position: how they are saved, released, noted and read
//	fence.go     the right to a partition: an epoch that the next owner raises, so that the last one commits nothing more
//	start.go     where a partition is read from (StartAt, pure)
//	queries.go   the statements
package position

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// Config is what a Table needs. StartAt and what a person is told ask neither Pool, Random nor Transact.
type Config struct {
	Pool     *pgxpool.Pool
	Schema   string
	Consumer string
	Node     string // names this process among the nodes of the consumer
	Random   func() float64

	// Transact runs f in a transaction, and bounds its statements.
	Transact func(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error
}

// Table is a consumer's rows in the table consumer_position. Many goroutines may use it at once. No method but Assign tries
// again, and each takes as long as its context lets it.
//
// It notices that Postgres went back in time while a consumer runs. A crash with synchronous_commit = off, or a failover
// to an asynchronous standby, undoes the last transactions, with effects that this node believes to be settled. No offset may
// be saved on such a belief. The unlogged table incarnation is empty after either event, and the view current_incarnation has
// another token whenever the server has started anew, as after a cold copy was put back. So a fence keeps the token that the
// view had when the fence was raised, and a position is saved only while the view still has that token.
//
// Transactions of events need not look. Those that were lost lie at or above the position that Postgres has now, and later
// ones are durable again. What the node computed from both is refused as a whole, and the partition is read again from
// Postgres's position. An event with a row is a duplicate; one that was lost is handled.
type Table struct {
	Config
	SQL Statements

	waiting chan struct{} // one for each partition that waits for its last owner's transactions with a connection; full at the most
}

// New returns the rows of a consumer.
func New(c Config) *Table {
	return &Table{Config: c, SQL: In(c.Schema), waiting: make(chan struct{}, waitingMost(c.Pool))}
}

// Progress is how far a node's partition is settled.
type Progress struct {
	Fence   *Fence
	Settled int64                // every offset below it
	Last    readahead.Checkpoint // the last event below it
}

// Save saves how far partitions are settled, in one statement. Those that it does not return were lost, or were assigned in another
// incarnation of the database.
func (t *Table) Save(ctx context.Context, all []Progress) (saved map[source.TopicPartition]bool, err error) {
	var topics, tokens []string
	var numbers []int32
	var epochs, settled, offsets, identities []int64
	for _, p := range all {
		topics, numbers = append(topics, p.Fence.Topic), append(numbers, int32(p.Fence.Partition))
		epochs, settled = append(epochs, p.Fence.Epoch), append(settled, p.Settled)
		offsets, identities = append(offsets, p.Last.Offset), append(identities, p.Last.Identity)
		tokens = append(tokens, p.Fence.Token)
	}
	failpoint.Hit(failpoint.InboxSaving)
	rows, err := t.Pool.Query(ctx, t.SQL.Save, t.Consumer, topics, numbers, epochs, settled, offsets, identities, tokens)
	if err != nil {
		return nil, fmt.Errorf("save positions: %w", err)
	}
	saved = map[source.TopicPartition]bool{}
	var topic string
	var number int32
	if _, err := pgx.ForEachRow(rows, []any{&topic, &number}, func() error {
		saved[source.TopicPartition{Topic: topic, Partition: int(number)}] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("save positions: %w", err)
	}
	failpoint.Hit(failpoint.InboxSaved)
	return saved, nil
}

// Release gives a partition up, and says how far it is settled and whether its end was clean. It returns failure.ErrFenced if the
// partition was lost. same is false if it was assigned in another incarnation of the database: then its position stays as it is.
func (t *Table) Release(ctx context.Context, p Progress, clean bool) (same bool, err error) {
	f := p.Fence
	err = t.Pool.QueryRow(ctx, t.SQL.Release, t.Consumer, f.Topic, int32(f.Partition), f.Epoch, p.Settled, clean, p.Last.Offset, p.Last.Identity, f.Token).Scan(&same)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, failure.ErrFenced
	}
	if err != nil {
		return false, fmt.Errorf("release %s/%d: %w", f.Topic, f.Partition, err)
	}
	return same, nil
}

// Hold notes why a partition is held, for holdfast status; nil takes the note back. It returns the position that the row has, and false
// if there is no row. epoch is that of a node that has claimed the partition: nothing is noted if another node has it by now.
func (t *Table) Hold(ctx context.Context, tp source.TopicPartition, why *string, epoch *int64) (position int64, found bool, err error) {
	err = t.Pool.QueryRow(ctx, t.SQL.Hold, t.Consumer, tp.Topic, int32(tp.Partition), why, epoch).Scan(&position)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("note that %s/%d is held: %w", tp.Topic, tp.Partition, err)
	}
	return position, true, nil
}

// Standings are where the consumer stands in all its partitions.
func (t *Table) Standings(ctx context.Context) (map[source.TopicPartition]readahead.Standing, error) {
	rows, err := t.Pool.Query(ctx, t.SQL.Standings, t.Consumer)
	if err != nil {
		return nil, fmt.Errorf("read positions: %w", err)
	}
	at := map[source.TopicPartition]readahead.Standing{}
	var topic, held string
	var partition int32
	var position int64
	if _, err := pgx.ForEachRow(rows, []any{&topic, &partition, &position, &held}, func() error {
		at[source.TopicPartition{Topic: topic, Partition: int(partition)}] = readahead.Standing{
			Claimed:  true,
			Position: position,
			Held:     held,
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read positions: %w", err)
	}
	return at, nil
}

// Checkpoint reads the last event below a partition's position, as it was settled. Its offset is source.NoOffset if there is none.
func (t *Table) Checkpoint(ctx context.Context, tp source.TopicPartition) (last readahead.Checkpoint, err error) {
	last.Offset = source.NoOffset
	err = t.Pool.QueryRow(ctx, t.SQL.Checkpoint, t.Consumer, tp.Topic, int32(tp.Partition)).Scan(&last.Offset, &last.Identity)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return readahead.Checkpoint{Offset: source.NoOffset}, fmt.Errorf("read checkpoint of %s/%d: %w", tp.Topic, tp.Partition, err)
	}
	return last, nil
}

// Incarnation reads the database's token. It is "" after a crash, until a node renews it.
func (t *Table) Incarnation(ctx context.Context) (token string, err error) {
	if err := t.Pool.QueryRow(ctx, t.SQL.Incarnation).Scan(&token); err != nil {
		return "", fmt.Errorf("read the incarnation: %w", err)
	}
	return token, nil
}

// Renew fills the token after a crash has emptied it. The first of many nodes does.
func (t *Table) Renew(ctx context.Context) error { return t.renew(ctx, t.Pool) }

// renew is Renew on a pool or in a transaction.
func (t *Table) renew(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}) error {
	if _, err := db.Exec(ctx, t.SQL.Renew); err != nil {
		return fmt.Errorf("refill the incarnation: %w", err)
	}
	return nil
}
