package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// chain takes events in on one connection, each in a transaction of its own. Everything before the handler is one round
// trip, and COMMIT travels with the beginning of the next transaction:
//
//	BEGIN, time-outs and fence, insert ─► handler ─► COMMIT + BEGIN, time-outs and fence, insert ─► handler ─► … ─► COMMIT
//
// So while there is work an event costs one round trip beside what its handler does. Whoever uses a chain has to end it
// with commit: until then the last transaction is open.
type chain struct {
	receiver *receiver
	conn     *pgxpool.Conn // nil while no transaction is open
	tx       pgx.Tx        // everything of it is done but COMMIT; nil otherwise
	since    time.Time     // of the first transaction on conn
	links    int           // transactions on conn
}

const (
	// beginSQL's other half is openSQL.
	beginOnly = "begin isolation level read committed"

	// A chain gives its connection back now and then, so that a pool that is smaller than all who want a connection of
	// it serves them in turns.
	maxLinks = 64
	maxChain = 20 * time.Millisecond
)

var (
	// errNotTried is said of events whose transaction has not begun, because the one before it could not be committed.
	errNotTried = errors.New("the transaction before it failed")

	// errOneByOne is said of a batch that has events among it which are known, or wait behind others of their key, and of
	// followers among which one is known, or which have nothing before them any more, or no room.
	errOneByOne = errors.New("the batch is to be taken apart")
)

// taking is what one transaction takes in: an event, several of one type and partition as a batch, or several of one key that
// wait behind it.
type taking struct {
	ds      []*delivery
	attempt int  // of the one event
	behind  bool // they are stored, and no handler runs
}

// try takes events in up to COMMIT. The transaction that was open before is committed on the way, and committed is called with
// its error, a *failure, before a handler runs: what that event held is free then. The error returned is a *failure, or one of
// the above.
func (c *chain) try(ctx context.Context, t taking, committed func(error)) (out Outcome, err error) {
	if c.conn == nil {
		conn, err := c.receiver.pool.Acquire(ctx)
		if err != nil {
			return "", blame(ctx, fmt.Errorf("acquire connection: %w", err), circumstances{connLost: true})
		}
		c.conn, c.since, c.links = conn, time.Now(), 0
	}
	c.links++
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{BeginQuery: beginOnly})
	c.receiver.ledger.queueOpening(b, t.ds[0])
	switch {
	case t.behind:
		c.receiver.queues.queueFollowers(b, t.ds)
	case len(t.ds) == 1:
		c.receiver.ledger.queueInsert(b, t.ds[0], t.attempt)
	default:
		c.receiver.ledger.queueInsertMany(b, t.ds)
	}
	committing := c.tx != nil
	sending, cancel := ctx, func() {}
	if committing { // It is done whatever becomes of the next.
		failpoint.Hit(failpoint.InboxCommitting)
		b.QueuedQueries = slices.Insert(b.QueuedQueries, 0, &pgx.QueuedQuery{SQL: "commit"})
		sending, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
	}
	failpoint.Hit(failpoint.InboxInserting)
	br := c.conn.SendBatch(sending, b)
	if committing {
		c.tx = nil
		tag, err := br.Exec()
		if err == nil && tag.String() == "ROLLBACK" {
			err = fmt.Errorf("a statement failed, but the handler returned nil: %w", pgx.ErrTxCommitRollback)
		}
		if err != nil {
			_ = br.Close()
			cancel()
			rollback(ctx, br.Tx())
			c.letGo()
			committed(blame(ctx, fmt.Errorf("commit: %w", err), circumstances{committing: true}))
			return "", errNotTried
		}
	}
	_, err = br.Exec() // BEGIN
	if err == nil {
		_, err = br.Exec() // time-outs and fence
	}
	var result string
	switch {
	case err != nil:
	case t.behind:
		err = c.receiver.queues.readFollowers(br, t.ds)
	case len(t.ds) == 1:
		result, err = readInsert(br)
	default:
		err = readInsertMany(br, len(t.ds))
	}
	if closing := br.Close(); err == nil && closing != nil {
		err = closing
	}
	cancel()
	if committing {
		committed(nil)
	}
	if err == nil {
		err = ctx.Err()
	}
	tx := br.Tx()
	switch {
	case len(t.ds) == 1:
		out, err = c.receiver.taken(ctx, tx, t.ds[0], result, err)
	case err != nil:
	case t.behind:
		failpoint.Hit(failpoint.InboxParking)
		out = Stored
	default:
		failpoint.Hit(failpoint.InboxBatched)
		out, err = Handled, c.receiver.runner.call(ctx, tx, t.ds[0].h, events(t.ds))
	}
	if err != nil {
		conn := c.conn
		c.conn = nil
		if errors.Is(err, errOneByOne) {
			rollback(ctx, tx)
			conn.Release()
			return "", err
		}
		return "", c.receiver.runner.failed(ctx, conn, tx, err)
	}
	failpoint.Hit(failpoint.InboxHandled)
	c.tx = tx
	return out, nil
}

// commit ends the chain. Its error is a *failure of the last transaction.
func (c *chain) commit(ctx context.Context) error {
	conn, tx := c.conn, c.tx
	c.conn, c.tx = nil, nil
	return c.receiver.runner.commitTx(ctx, conn, tx)
}

// long says that the chain should end.
func (c *chain) long() bool { return c.links >= maxLinks || time.Since(c.since) > maxChain }

func (c *chain) letGo() {
	c.conn.Release()
	c.conn = nil
}

// alone is a trial that takes an event in, in a transaction of two round trips.
func (rec *receiver) alone(d *delivery, attempt int) trial {
	if d.try {
		return rec.runner.within(rec.trying(d, func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.take(ctx, tx, d, attempt) }))
	}
	return func(ctx context.Context) (Outcome, error) {
		c := chain{receiver: rec}
		out, err := c.try(ctx, taking{ds: []*delivery{d}, attempt: attempt}, nil)
		if err == nil {
			err = c.commit(ctx)
		}
		return out, err
	}
}

func events(ds []*delivery) []holdfast.Event {
	es := make([]holdfast.Event, len(ds))
	for i, d := range ds {
		es[i] = d.e
	}
	return es
}

// take records the event and runs its handler, in the caller's transaction.
func (rec *receiver) take(ctx context.Context, tx pgx.Tx, d *delivery, attempt int) (Outcome, error) {
	b := &pgx.Batch{}
	rec.ledger.queueInsert(b, d, attempt)
	br := tx.SendBatch(ctx, b)
	result, err := readInsert(br)
	if closing := br.Close(); err == nil && closing != nil {
		err = closing
	}
	return rec.taken(ctx, tx, d, result, err)
}

// taken goes on behind the insert of the event's row: result is what it recorded.
func (rec *receiver) taken(ctx context.Context, tx pgx.Tx, d *delivery, result string, err error) (Outcome, error) {
	switch {
	case err != nil:
		return "", err
	case result == "": // Known, or another node has the partition by now.
		if d.from != nil {
			if err := d.from.fence.check(ctx, rec.env, tx); err != nil {
				return "", err
			}
		}
		return rec.ledger.known(ctx, tx, d)
	case result == "stored": // Behind earlier events of its key.
		return rec.queues.queue(ctx, tx, d, past{}, nil, Stored, true)
	}
	failpoint.Hit(failpoint.InboxInserted)
	if err := rec.runner.call(ctx, tx, d.h, []holdfast.Event{d.e}); err != nil {
		return "", err
	}
	return Handled, behind(tx, rec.ledger.forget(ctx, tx, d))
}
