package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file writes down what was decided about an event that is taken in: park it, or bury it.

// ledger is the rows of events in the table inbox, and their letters.
type ledger struct{ *env }

// queues are the events that wait, by topic and key.
type queues struct {
	*env
	ledger *ledger
	quota  *quota
}

// record writes the inbox row of an event that was not handled, behind the fence. False: there is one already.
func (led *ledger) record(ctx context.Context, tx pgx.Tx, d *delivery, result string, attempts int) (bool, error) {
	b := &pgx.Batch{}
	if d.from != nil {
		d.from.fence.queue(led.env, b)
	}
	b.Queue(led.sql.record, led.c.Consumer, d.e.Source, d.e.ID, d.e.Topic, d.partition(), d.offset(), d.hash, result, int32(attempts))
	br := tx.SendBatch(ctx, b)
	var err error
	if d.from != nil {
		err = d.from.fence.read(br)
	}
	var inserted int64
	if err == nil {
		tag, exec := br.Exec()
		inserted, err = tag.RowsAffected(), exec
	}
	if closing := br.Close(); err == nil && closing != nil {
		err = closing
	}
	if err != nil {
		return false, fmt.Errorf("insert inbox row: %w", err)
	}
	return inserted == 1, nil
}

// past is what an event that is stored has behind it. The zero value: its handler has not failed.
type past struct {
	attempts int
	errors   []string
	age      time.Duration // since its first failure
}

// park keeps an event in `stored`: due after delay (nil: now), or behind what waits of its key. It returns as.
func (qs *queues) park(ctx context.Context, tx pgx.Tx, d *delivery, p past, delay *time.Duration, as Outcome) (Outcome, error) {
	inserted, err := qs.ledger.record(ctx, tx, d, "stored", p.attempts)
	if err != nil {
		return "", err
	}
	if !inserted {
		return qs.ledger.known(ctx, tx, d)
	}
	return qs.queue(ctx, tx, d, p, delay, as, false)
}

// queue puts an event at the end of its key's queue, in one round trip, so that the lock of the key is held for no more than
// that and the COMMIT: whoever takes the head away waits for it.
//
// Rule: a follower may sleep (next_at 'infinity') only where whoever takes the head away is sure to see it. Both take
// the lock of the key first, and look in a statement of their own afterwards. So either the head's end waits for this
// insert and wakes it, or this looks again, finds the queue gone, and (mustFollow) the event runs at once instead.
func (qs *queues) queue(ctx context.Context, tx pgx.Tx, d *delivery, p past, delay *time.Duration, as Outcome, mustFollow bool) (Outcome, error) {
	var wait int64
	if delay != nil {
		wait = delay.Microseconds()
	}
	var age *int64
	if len(p.errors) > 0 {
		age = new(int64)
		*age = p.age.Microseconds()
	}
	if err := qs.quota.countStored(ctx, tx); err != nil {
		return "", err
	}
	if err := qs.quota.enterStock(); err != nil {
		return "", qs.unrecorded(ctx, tx, d, err)
	}
	locks := d.e.Key != "" && !d.callers
	b := &pgx.Batch{}
	if locks {
		b.Queue(qs.sql.lock, int32(lane.KeyClass), qs.keyNumber(d.e.Topic, d.e.Key))
	}
	b.Queue(qs.sql.store, qs.c.Consumer, d.e.Topic, d.e.Key, d.e.Source, d.e.ID, d.e.Type, timeOrNil(d.e.Time), headersJSON(d.e.Headers),
		d.e.Payload, d.hash, d.partition(), d.offset(), int32(p.attempts), nonNil(p.errors), wait, age, locks, qs.quota.measures(d.e.Topic, d.e.Key, 1))
	br := tx.SendBatch(ctx, b)
	if locks {
		_, _ = br.Exec() // Its error is that of all behind it.
	}
	var behind bool
	var length *int
	err := br.QueryRow().Scan(&behind, &length)
	if closing := br.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		err = fmt.Errorf("put the event behind its key: %w", err)
	case mustFollow && locks && !behind:
		err = errUnqueued
	case length != nil:
		err = qs.quota.roomOf(d.e.Topic, d.e.Key, *length)
	}
	if err != nil {
		qs.quota.stock.leave(1)
		return "", qs.unrecorded(ctx, tx, d, err)
	}
	failpoint.Hit(failpoint.InboxParking)
	return as, qs.ledger.forget(ctx, tx, d)
}

// unrecorded takes the event's row back where there is no room for the event, and returns err: a caller may commit what else
// is in the transaction, and an event that is recorded and not stored would never be handled.
func (qs *queues) unrecorded(ctx context.Context, tx pgx.Tx, d *delivery, err error) error {
	if !d.callers || !errors.Is(err, ErrFull) {
		return err
	}
	if _, uerr := tx.Exec(ctx, qs.sql.unrecord, qs.c.Consumer, d.e.Source, d.e.ID); uerr != nil {
		return fmt.Errorf("%w; take its row back: %w", err, uerr)
	}
	return err
}

// bury makes a letter of an event that is being taken in. It returns as.
func (led *ledger) bury(ctx context.Context, tx pgx.Tx, d *delivery, l letter, as Outcome) (Outcome, error) {
	inserted, err := led.record(ctx, tx, d, "dead", l.attempts)
	if err != nil {
		return "", err
	}
	if !inserted {
		return led.known(ctx, tx, d)
	}
	id, err := led.insertLetter(ctx, tx, d.e, d.hash, d.partition(), d.offset(), l)
	if err != nil {
		return "", err
	}
	failpoint.Hit(failpoint.InboxBurying)
	if as == Dead {
		d.after = func() { led.died(d.e, id, l) }
	}
	return as, led.forget(ctx, tx, d)
}

// forget removes the count of starts of an event that came to an end.
func (led *ledger) forget(ctx context.Context, tx pgx.Tx, d *delivery) error {
	if d.from == nil || !d.from.careful {
		return nil
	}
	if _, err := tx.Exec(ctx, led.sql.forgetStart, led.c.Consumer, d.e.Source, d.e.ID); err != nil {
		return fmt.Errorf("forget starts: %w", err)
	}
	return nil
}

// report tells of a durable outcome.
func (env *env) report(d *delivery, out Outcome, took time.Duration) {
	if d.after != nil {
		d.after()
	}
	switch out {
	case Stored, Retrying:
		env.wake()
	case Conflict:
		env.c.Logger.Warn("event id came again with another payload", env.attrs(d.e)...)
		if env.c.Observer.OnConflict != nil {
			env.c.Observer.OnConflict(d.e)
		}
	case Stale:
		env.c.Logger.Warn("event below the position was never handled", env.attrs(d.e)...)
	}
	if env.c.Observer.OnReceive != nil {
		env.c.Observer.OnReceive(Received{Event: d.e, Outcome: out, Took: took})
	}
}

func (env *env) retried(e holdfast.Event, attempt int, delay time.Duration, stored bool, err error) {
	env.c.Logger.Info("handler failed, will retry", append(env.attrs(e), "attempt", attempt, "delay", delay, "stored", stored, "class", classOf(err))...)
	if env.c.Observer.OnRetry != nil {
		env.c.Observer.OnRetry(Retried{Event: e, Attempt: attempt, Delay: delay, Stored: stored, Err: err})
	}
}

func (env *env) died(e holdfast.Event, id int64, l letter) {
	env.c.Logger.Error("event given up", append(env.attrs(e), "letter", id, "attempts", l.attempts, "class", classOf(l.err))...)
	if env.c.Observer.OnDead != nil {
		env.c.Observer.OnDead(Died{Event: e, Letter: id, Reason: l.reason, Attempts: l.attempts, Err: l.err})
	}
}

// full tells of an event that there is no room for: its partition is held.
func (env *env) full(d *delivery, err error) {
	env.c.Logger.Error("partition is held: too many events are stored", append(env.attrs(d.e), "partition", d.from.fence.Partition, "error", err)...)
	if env.c.Observer.OnFull != nil {
		env.c.Observer.OnFull(d.e, err)
	}
}

// attrs are what a log line says of an event: never its payload, its headers or its key.
func (env *env) attrs(e holdfast.Event) []any {
	return []any{"consumer", env.c.Consumer, "topic", e.Topic, "type", e.Type, "source", e.Source, "id", e.ID}
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
