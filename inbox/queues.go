package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// This file puts events into the queue of their key, one or many at once. Those who store and those who handle what is stored take
// turns with the key's lock. One by one, a busy key that has fallen back would be stored as fast as it is handled, and would
// never catch up.

const (
	// maxFollowers is how many events one transaction stores.
	maxFollowers = 64

	// maxFollowerBytes is how many bytes of payload they may have. The next transaction takes the rest.
	maxFollowerBytes = 1 << 20
)

// followers is how many events of a key one transaction may take after a job with this outcome. If the job was stored, they
// will be stored too. If there may not be room for all of them, each has to ask.
func (qs *queues) followers(out Outcome) int {
	if out == Stored && qs.quota.usage.roomy(maxFollowers, qs.c.MaxStored, time.Now()) {
		return maxFollowers
	}
	return 1
}

// queueFollowers stores many events that follow a stored one, as a single one is stored: record, lock, store, in this order.
func (qs *queues) queueFollowers(b *pgx.Batch, ds []*delivery) {
	n, first := len(ds), ds[0]
	sources, ids, types, headers := make([]string, n), make([]string, n), make([]string, n), make([]*string, n)
	times, payloads, hashes, offsets := make([]*time.Time, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i, d := range ds {
		sources[i], ids[i], types[i], headers[i] = d.e.Source, d.e.ID, d.e.Type, headersJSON(d.e.Headers)
		times[i], payloads[i], hashes[i], offsets[i] = timeOrNil(d.e.Time), d.e.Payload, d.hash, d.from.offset
	}
	b.Queue(qs.sql.recordMany, qs.c.Consumer, first.e.Topic, first.partition(), first.epoch(), sources, ids, offsets, hashes)
	b.Queue(qs.sql.lock, int32(lane.KeyClass), qs.keyNumber(first.e.Topic, first.e.Key))
	b.Queue(plain.Nulls) // No handler runs in this transaction any more.
	b.Queue(qs.sql.storeMany, qs.c.Consumer, first.e.Topic, first.e.Key, sources, ids, types, times, headers, payloads, hashes,
		first.partition(), offsets, qs.quota.measures(first.e.Topic, first.e.Key, n))
}

// readFollowers reads the answers to queueFollowers. The error is errOneByOne unless all of them were stored.
func (qs *queues) readFollowers(br pgx.BatchResults, ds []*delivery) error {
	var fresh int
	var follows bool
	var length *int
	err := br.QueryRow().Scan(&fresh)
	for range 2 { // the lock, and the setting
		if err == nil {
			_, err = br.Exec()
		}
	}
	if err == nil {
		err = br.QueryRow().Scan(&follows, &length)
	}
	if err != nil {
		return fmt.Errorf("queue events of a key: %w", err)
	}
	if length != nil {
		e := &ds[0].e
		if qs.quota.checkLength(e.Topic, e.Key, *length+len(ds)-1) != nil {
			return errOneByOne
		}
	}
	if fresh != len(ds) || !follows {
		return errOneByOne
	}
	return nil
}

// queues are the stored events, by topic and key.
type queues struct {
	*env
	ledger *ledger
	quota  *quota
}

// past is what happened to an event before it was stored. The zero value: its handler has not failed.
type past struct {
	attempts int
	errors   []string
	age      time.Duration // since its first failure
}

// store stores an event: due after delay (nil: now), or after the events of its key that wait. It returns as.
func (qs *queues) store(ctx context.Context, tx pgx.Tx, d *delivery, p past, delay *time.Duration, as Outcome) (Outcome, error) {
	inserted, err := qs.ledger.record(ctx, tx, d, "stored", p.attempts)
	if err != nil {
		return "", err
	}
	if !inserted {
		return qs.ledger.known(ctx, tx, d)
	}
	return qs.queue(ctx, tx, d, p, delay, as, false)
}

// queue puts an event at the end of its key's queue, in one round trip. So the lock of the key is held only for that and the
// COMMIT. The transaction that removes the head waits for the lock.
//
// Rule: a follower may be dormant (next_at 'infinity') only if the transaction that removes the head is sure to see it. Both take
// the key's lock first, and look in a later statement of their own. So either the removal waits for this insert and wakes the
// event, or this statement finds the queue empty and (mustFollow) the event runs at once.
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
	if err := qs.quota.count(ctx, tx); err != nil {
		return "", err
	}
	if err := qs.quota.enter(d); err != nil {
		return "", qs.unrecorded(ctx, tx, d, err)
	}
	locks := d.e.Key != "" && d.manner != mannerCallers
	b := &pgx.Batch{}
	if locks {
		b.Queue(qs.sql.lock, int32(lane.KeyClass), qs.keyNumber(d.e.Topic, d.e.Key))
	}
	b.Queue(qs.sql.store, qs.c.Consumer, d.e.Topic, d.e.Key, d.e.Source, d.e.ID, d.e.Type, timeOrNil(d.e.Time), headersJSON(d.e.Headers),
		d.e.Payload, d.hash, d.partition(), d.offset(), int32(p.attempts), nonNil(p.errors), wait, age, locks, qs.quota.measures(d.e.Topic, d.e.Key, 1))
	br := tx.SendBatch(ctx, b)
	if locks {
		_, _ = br.Exec() // Its error comes again with the next answer.
	}
	var follows bool
	var length *int
	err := br.QueryRow().Scan(&follows, &length)
	if closing := br.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		err = fmt.Errorf("queue the event: %w", err)
	case mustFollow && locks && !follows:
		err = errUnqueued
	case length != nil:
		err = qs.quota.checkLength(d.e.Topic, d.e.Key, *length)
	}
	if err != nil {
		qs.quota.leave(d)
		return "", qs.unrecorded(ctx, tx, d, err)
	}
	failpoint.Hit(failpoint.InboxParking)
	return as, qs.ledger.starts.forget(ctx, tx, d)
}

// unrecorded removes the event's row when there is no room for the event, and returns err. The caller may commit the rest of the
// transaction, and an event with a row that is not stored would never be handled.
func (qs *queues) unrecorded(ctx context.Context, tx pgx.Tx, d *delivery, err error) error {
	if d.manner != mannerCallers || !errors.Is(err, ErrFull) {
		return err
	}
	if _, uerr := tx.Exec(ctx, qs.sql.unrecord, qs.c.Consumer, d.e.Source, d.e.ID); uerr != nil {
		return fmt.Errorf("%w; take its row back: %w", err, uerr)
	}
	return err
}
