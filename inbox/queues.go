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

// queueFollowers records and stores many events that follow a stored one, as a single one is: record, lock, store, in this order.
func (qs *queues) queueFollowers(b *pgx.Batch, ds []*delivery) {
	qs.ledger.queueRecord(b, ds, 1, "stored", ds[0].fence())
	qs.queueStore(b, ds, past{}, nil, true)
}

// readFollowers reads the answers to queueFollowers. The error is errOneByOne unless all of them were stored.
func (qs *queues) readFollowers(br pgx.BatchResults, ds []*delivery) error {
	w, err := readRecord(br)
	if err != nil {
		return err
	}
	err = qs.readStore(br, ds, true)
	if err == nil && w.stored < len(ds) || errors.Is(err, errUnqueued) || errors.Is(err, ErrFull) {
		return errOneByOne
	}
	return err
}

// queueStore puts events of one key at the end of its queue: due after delay (nil: now), or after the events that wait; with must only
// after such.
func (qs *queues) queueStore(b *pgx.Batch, ds []*delivery, p past, delay *time.Duration, must bool) {
	n, first := len(ds), ds[0]
	var wait int64
	if delay != nil {
		wait = delay.Microseconds()
	}
	var age *int64
	if len(p.errors) > 0 {
		age = new(int64)
		*age = p.age.Microseconds()
	}
	e := &first.e
	if first.locks() {
		b.Queue(qs.sql.lock, int32(lane.KeyClass), qs.keyNumber(e.Topic, e.Key))
	}
	args := []any{first.partition(), int32(p.attempts), nonNil(p.errors), wait, age, first.locks(), must && first.locks(), qs.quota.measures(e.Topic, e.Key, n), int32(n), int32(p.losses)}
	if n == 1 {
		b.Queue(qs.sql.store, append([]any{qs.c.Consumer, e.Topic, e.Key, e.Source, e.ID, e.Type, timeOrNil(e.Time), headersJSON(e.Headers), e.Payload,
			first.hash, first.offset()}, args...)...)
		return
	}
	sources, ids, types, headers := make([]string, n), make([]string, n), make([]string, n), make([]*string, n)
	times, payloads, hashes, offsets := make([]*time.Time, n), make([][]byte, n), make([][]byte, n), make([]int64, n)
	for i, d := range ds {
		sources[i], ids[i], types[i], headers[i] = d.e.Source, d.e.ID, d.e.Type, headersJSON(d.e.Headers)
		times[i], payloads[i], hashes[i], offsets[i] = timeOrNil(d.e.Time), d.e.Payload, d.hash, d.from.offset
	}
	b.Queue(plain.Nulls) // No handler runs in this transaction any more.
	b.Queue(qs.sql.storeMany, append([]any{qs.c.Consumer, e.Topic, e.Key, sources, ids, types, times, headers, payloads, hashes, offsets}, args...)...)
}

// readStore reads the answers to queueStore. The error is errUnqueued if nothing was stored because it had to follow, and wraps ErrFull if the
// queue has no room.
func (qs *queues) readStore(br pgx.BatchResults, ds []*delivery, must bool) error {
	e, locks := &ds[0].e, ds[0].locks()
	if locks {
		_, _ = br.Exec() // Its error comes again with the next answer, as that of the setting does.
	}
	if len(ds) > 1 {
		_, _ = br.Exec()
	}
	var follows bool
	var length *int
	err := br.QueryRow().Scan(&follows, &length)
	switch {
	case err != nil:
		return fmt.Errorf("put into the queue of its key: %w", err)
	case must && locks && !follows:
		return errUnqueued
	case length != nil:
		return qs.quota.checkLength(e.Topic, e.Key, *length+len(ds)-1)
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
	losses   int           // as claimed.losses
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
	if err := qs.quota.count(ctx, tx); err != nil {
		return "", err
	}
	if err := qs.quota.enter(d); err != nil {
		return "", qs.takeBack(ctx, tx, d, err)
	}
	b := &pgx.Batch{}
	qs.queueStore(b, []*delivery{d}, p, delay, mustFollow)
	br := tx.SendBatch(ctx, b)
	err := qs.readStore(br, []*delivery{d}, mustFollow)
	if closing := br.Close(); err == nil {
		err = closing
	}
	if err != nil {
		qs.quota.leave(d)
		return "", qs.takeBack(ctx, tx, d, err)
	}
	failpoint.Hit(failpoint.InboxParking)
	return as, qs.ledger.starts.forget(ctx, tx, d)
}

// takeBack removes the event's row when there is no room for the event, and returns err. The caller may commit the rest of the
// transaction, and an event with a row that is not stored would never be handled.
func (qs *queues) takeBack(ctx context.Context, tx pgx.Tx, d *delivery, err error) error {
	if d.manner != mannerCallers || !errors.Is(err, ErrFull) {
		return err
	}
	if _, uerr := tx.Exec(ctx, qs.sql.unrecord, qs.c.Consumer, d.e.Source, d.e.ID); uerr != nil {
		return fmt.Errorf("%w; take its row back: %w", err, uerr)
	}
	return err
}
