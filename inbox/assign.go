package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/jackc/pgx/v5"
)

// assign makes the partition ours in Postgres.
func (p *partition) assign(ctx context.Context) error {
	known := int64(noOffset) // our position, as it was before the bounds were asked for
	for wait := 0; ; wait++ {
		first, end, err := p.gen.bounds(ctx, p.tp)
		if err != nil && ctx.Err() == nil {
			p.consumer.kafkaTroubled("asking for the log's bounds", err)
		}
		same, ok := false, err == nil
		if ok {
			same, ok = p.sameLog(ctx, first)
		}
		if ok {
			var a assignment
			a, err = p.consumer.assign(ctx, p.tp.topic, p.tp.partition, func(position int64) (reading, error) {
				if position > end && known <= end { // The last owner went on while we waited for the fence, or were frozen.
					known = position
					return reading{}, errOldBounds
				}
				return startAt(position, p.committed, first, end, same, p.o.adopt, p.o.skipDeleted)
			})
			if err == nil {
				failpoint.Hit(failpoint.InboxAssigned)
				p.mu.Lock()
				p.fence, p.track = a.fence, newTracker(a.reading.start)
				p.saved, p.known = a.reading.start, p.committed
				p.careful, p.carefulLeft, p.carefulEnd = a.careful, maxAhead, end
				p.mu.Unlock()
				p.consumer.c.Logger.Info("partition assigned", "consumer", p.consumer.c.Consumer, "topic", p.tp.topic, "partition", p.tp.partition,
					"epoch", a.fence.Epoch, "start", a.reading.start, "position", a.reading.position, "committed", p.committed, "careful", a.careful)
				if p.consumer.c.Observer.OnAssigned != nil {
					p.consumer.c.Observer.OnAssigned(a.fence.Assignment, a.reading.start)
				}
				p.rereads(a.fence, a.reading)
				return nil
			}
			if errors.Is(err, errOldBounds) {
				continue
			}
			if fatal(err) {
				return err
			}
			if ctx.Err() == nil {
				p.consumer.troubled(err)
			}
		}
		if perr := pause(ctx, spread(databaseBase, databaseCap, wait+1, p.consumer.random())); perr != nil {
			return perr
		}
	}
}

// errOldBounds says that a log's bounds were asked for before our position was read, and that it has grown since, maybe.
var errOldBounds = errors.New("the log's bounds may be older than the position")

// assignment is what Postgres says of a partition that we were given.
type assignment struct {
	fence   *fence
	reading reading
	careful bool // the last owner did not end in order
}

// assign raises the epoch, once every transaction of the last owner has ended, and chooses where to read from.
func (co *consumer) assign(ctx context.Context, topic string, partition int, choose func(position int64) (reading, error)) (assignment, error) {
	f := &fence{Assignment: Assignment{Topic: topic, Partition: partition}}
	f.number = lane.Number(co.c.Schema, co.c.Consumer, topic, fmt.Sprint(partition))
	a := assignment{fence: f}
	var refused error
	err := co.runner.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, co.sql.lock, int32(fenceClass), f.number); err != nil {
			return fmt.Errorf("take fence of %s/%d: %w", topic, partition, err)
		}
		// Before the row: whoever waits here for another's token holds nothing that a save waits for.
		if _, err := tx.Exec(ctx, co.sql.renew); err != nil {
			return fmt.Errorf("refill the incarnation: %w", err)
		}
		// The row is locked from here on: a save of the last owner comes before, or finds that it is too late.
		position, clean := int64(noOffset), true
		err := tx.QueryRow(ctx, co.sql.position, co.c.Consumer, topic, int32(partition)).Scan(&position, &clean)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("read position of %s/%d: %w", topic, partition, err)
		}
		if a.reading, refused = choose(position); refused != nil {
			return refused
		}
		a.careful = !clean
		f.position = a.reading.position
		err = tx.QueryRow(ctx, co.sql.assign, co.c.Consumer, topic, int32(partition), a.reading.position, co.node).Scan(&f.Epoch, &f.token)
		if err != nil {
			return fmt.Errorf("raise epoch of %s/%d: %w", topic, partition, err)
		}
		failpoint.Hit(failpoint.InboxAssigning)
		return nil
	})
	var beyond *beyondEnd
	if errors.As(refused, &beyond) {
		table := sqlschema.In(co.c.Schema, "holdfast.consumer_position")
		row := fmt.Sprintf("consumer = %s and topic = %s and partition = %d", quoted(co.c.Consumer), quoted(topic), partition)
		refused = fmt.Errorf("%w: %s", refused, beyond.remedy(table, row))
	}
	if refused != nil {
		return assignment{}, fmt.Errorf("read %s/%d: %w", topic, partition, refused)
	}
	return a, err
}

// quoted is text as a literal of SQL, for statements that a person is told to run.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
