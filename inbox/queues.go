package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file puts events into the queue of their key, one or many at once. The one who stores and the one who handles what is stored take the
// lock of the key in turns: one by one, a busy key that has fallen behind would be stored as fast as it is handled, and never
// catch up.

const (
	// maxFollowers is how many are stored in one transaction.
	maxFollowers = 64

	// maxFollowerBytes is how many bytes of payload they may have: what comes beyond is left to the next transaction.
	maxFollowerBytes = 1 << 20
)

// followers is how many events of a key may come behind a job that had this outcome, in one transaction: where it was stored they
// will be too. Where it is not sure that there is room for them, each has to ask for it.
func (qs *queues) followers(out Outcome) int {
	if out == Stored && qs.quota.usage.roomy(maxFollowers, qs.c.MaxStored, time.Now()) {
		return maxFollowers
	}
	return 1
}

// errOneByOne is said of a batch that has events among it which are known, or wait behind others of their key, and of
// followers among which one is known, or which have nothing before them any more, or no room.
var errOneByOne = errors.New("the batch is to be taken apart")

// queueFollowers is Receive's way of an event that comes behind others: record, lock, store, in that order, for many.
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
	b.Queue(qs.sql.storeMany, qs.c.Consumer, first.e.Topic, first.e.Key, sources, ids, types, times, headers, payloads, hashes,
		first.partition(), offsets, qs.quota.measures(first.e.Topic, first.e.Key, n))
}

// readFollowers says whether all of them are stored.
func (qs *queues) readFollowers(br pgx.BatchResults, ds []*delivery) error {
	var fresh int
	var behind bool
	var length *int
	err := br.QueryRow().Scan(&fresh)
	if err == nil {
		_, err = br.Exec() // the lock
	}
	if err == nil {
		err = br.QueryRow().Scan(&behind, &length)
	}
	if err != nil {
		return fmt.Errorf("put events behind their key: %w", err)
	}
	if length != nil {
		e := &ds[0].e
		if qs.quota.checkLength(e.Topic, e.Key, *length+len(ds)-1) != nil {
			return errOneByOne
		}
	}
	if fresh != len(ds) || !behind {
		return errOneByOne
	}
	return nil
}

// queues are the events that wait, by topic and key.
type queues struct {
	*env
	ledger *ledger
	quota  *quota
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
// that and the COMMIT: the transaction that takes the head away waits for it.
//
// Rule: a follower may sleep (next_at 'infinity') only where the transaction that takes the head away is sure to see it. Both take
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
	if err := qs.quota.count(ctx, tx); err != nil {
		return "", err
	}
	if err := qs.quota.enter(); err != nil {
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
		err = qs.quota.checkLength(d.e.Topic, d.e.Key, *length)
	}
	if err != nil {
		qs.quota.usage.leave(1)
		return "", qs.unrecorded(ctx, tx, d, err)
	}
	failpoint.Hit(failpoint.InboxParking)
	return as, qs.ledger.starts.forget(ctx, tx, d)
}

// unrecorded takes the event's row back where there is no room for the event, and returns err: a caller may commit what else
// is in the transaction, and an event that is recorded and not stored would never be handled.
func (qs *queues) unrecorded(ctx context.Context, tx pgx.Tx, d *delivery, err error) error {
	if d.manner != mannerCallers || !errors.Is(err, ErrFull) {
		return err
	}
	if _, uerr := tx.Exec(ctx, qs.sql.unrecord, qs.c.Consumer, d.e.Source, d.e.ID); uerr != nil {
		return fmt.Errorf("%w; take its row back: %w", err, uerr)
	}
	return err
}

// keyNumber is what the dlq locks too, under lane.KeyClass, before it changes the queue of a key.
func (env *env) keyNumber(topic, key string) int32 {
	return lane.Number(env.c.Schema, env.c.Consumer, topic, key)
}
