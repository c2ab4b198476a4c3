package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file is one event's way in: record, handler, commit.

// Receive takes an event in and handles it, in one transaction of its own. The event needs ID, Type and Topic; the
// error says which field breaks which rule otherwise. A duplicate, a failure that will be tried again (Retrying) and a
// dead letter are outcomes, not errors, and they are durable: whoever sent the event need not send it again. An error
// means that nothing was decided and the event should be sent again: the database cannot be reached, or ctx ended. The
// error wraps ErrOutcomeUnknown when the event may have been handled nevertheless.
//
// Events of one topic and key that are received one after the other are handled in that order, whatever fails: the later
// ones are Stored until the earlier one is settled. Receive may be called from many goroutines at once.
func (in *Inbox) Receive(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.receiveAlone(ctx, e, nil, false)
}

// receiveAlone takes an event in and handles it, in transactions of its own: as TryReceive does, or as Receive. hash is
// that of newDeliveryOf.
func (rec *receiver) receiveAlone(ctx context.Context, e holdfast.Event, hash []byte, try bool) (Outcome, error) {
	rec.registry.start()
	if err := checkEvent(e); err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	if err := rec.runner.tooManyHung(); err != nil {
		return "", err
	}
	d := rec.newDeliveryOf(e, hash)
	d.try = try
	first := rec.alone(d, 1)
	if d.h == nil {
		s, skip, err := rec.unhandled(ctx, rec.pool, d)
		if err != nil {
			return "", fmt.Errorf("receive event: %w", err)
		}
		if skip {
			rec.report(d, Skipped, 0)
			return Skipped, nil
		}
		if try {
			s = rec.trying(d, s)
		}
		first = rec.runner.within(s)
	}
	out, err := rec.receive(ctx, rec.newIntake(d, first), nil)
	if err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	return out, nil
}

// ReceiveTx is Receive in the caller's transaction: what it says holds once that commits. The handler runs under a
// savepoint, so that its failure is recorded beside the caller's writes and undoes none of them. An error leaves the
// transaction fit for nothing but a rollback. Call it in READ COMMITTED: in a higher isolation two transactions with
// the same event end in a serialization error instead of a Duplicate. Not for use with one tx by many goroutines.
func (in *Inbox) ReceiveTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	in.registry.start()
	if err := checkEvent(e); err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	d := in.receiver.newDelivery(e)
	d.callers = true
	first := func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return in.receiver.take(ctx, tx, d, 1) }
	if d.h == nil {
		s, skip, err := in.receiver.unhandled(ctx, tx, d)
		if err != nil {
			return "", fmt.Errorf("receive event: %w", err)
		}
		if skip {
			return Skipped, nil
		}
		first = s
	}
	out, failed, err := in.receiver.underSavepoint(ctx, tx, first)
	if err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	if failed == nil {
		return out, nil
	}
	if failed.fault != faultEvent || tx.Conn().IsClosed() {
		return "", fmt.Errorf("receive event: %w", failed.err)
	}
	h, v := history{}.after(in.c.Retry, *failed, time.Now(), in.random())
	next, _ := in.receiver.afterFailure(d, h, v, nil)
	if out, err = next(ctx, tx); err != nil {
		return "", fmt.Errorf("receive event: record failure: %w", err)
	}
	return out, nil
}

// underSavepoint takes a step in the caller's transaction, under a savepoint. Where the handler fails, nothing of the
// step is left, and failed says why and whose fault it is. A handler that hangs costs the connection: that is the error.
func (rec *receiver) underSavepoint(ctx context.Context, tx pgx.Tx, s step) (out Outcome, failed *failure, err error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("begin savepoint: %w", err)
	}
	if out, err = s(ctx, savepoint); err == nil {
		if err := savepoint.Commit(ctx); err != nil {
			return "", nil, fmt.Errorf("release savepoint: %w", err)
		}
		return out, nil, nil
	}
	var h *handlerError
	if !errors.As(err, &h) {
		rollback(ctx, savepoint)
		return "", nil, err
	}
	if h.hung != nil { // The caller's connection is lost with the handler: it must not write into what comes next.
		_ = tx.Conn().PgConn().Conn().Close()
		go func() { <-h.hung; rec.runner.hung.Add(-1) }()
		return "", nil, err
	}
	f := judge(err, circumstances{inHandler: true, timedOut: h.timedOut, stopped: h.stopped, connLost: tx.Conn().IsClosed()})
	rollback(ctx, savepoint)
	return "", &failure{f, err}, nil
}

// Store takes an event in, in a transaction of its own, and leaves its handler to Run: the row now, the work later. What it
// returns is durable. A type that neither this node nor another handles is dealt with as Config.UnknownType says; an inbox
// without any handler stores every type, for the nodes that have them.
func (in *Inbox) Store(ctx context.Context, e holdfast.Event) (Outcome, error) {
	return in.receiver.storeAlone(ctx, e, nil, false)
}

// StoreTx stores an event in the caller's transaction. It works on nodes that have no handler for the type too. Stored,
// Duplicate and Conflict are its outcomes; they hold once the transaction commits.
func (in *Inbox) StoreTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	in.registry.start()
	if err := checkEvent(e); err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	d := in.receiver.newDelivery(e)
	d.callers = true
	out, err := in.receiver.queues.park(ctx, tx, d, past{}, nil, Stored)
	if err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	return out, nil
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

// stale makes a letter of an event that lies below what was settled when this node was given the partition, unless its
// row shows what became of it.
func (rec *receiver) stale(d *delivery) step {
	l := letter{reason: "stale: it lies below the consumer's position, and no row shows that it was handled"}
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.ledger.bury(ctx, tx, d, l, Stale) }
}

// known says what an event is whose id has been here before.
func (led *ledger) known(ctx context.Context, tx pgx.Tx, d *delivery) (Outcome, error) {
	var hash []byte
	var result string
	if err := tx.QueryRow(ctx, led.sql.known, led.c.Consumer, d.e.Source, d.e.ID).Scan(&hash, &result); err != nil {
		return "", fmt.Errorf("read inbox row: %w", err)
	}
	if !d.is(hash) {
		var edited bool
		hashes := [][]byte{d.hash, d.payloadHash()}
		if err := tx.QueryRow(ctx, led.sql.edited, led.c.Consumer, d.e.Source, d.e.ID, hashes).Scan(&edited); err != nil {
			return "", fmt.Errorf("look for the payload among those before an edit: %w", err)
		}
		if edited { // Its sender cannot know that a person mended it meanwhile.
			return Duplicate, nil
		}
		l := letter{reason: "conflict: its id is known with another payload", errors: []string{"another payload came first under this id"}}
		if _, err := led.insertLetter(ctx, tx, d.e, d.hash, d.partition(), d.offset(), l); err != nil {
			return "", err
		}
		return Conflict, nil
	}
	if d.inDoubt { // The COMMIT without an answer was carried out.
		switch result {
		case "handled":
			return Handled, nil
		case "stored":
			return Stored, nil
		case "dead":
			return Dead, nil
		}
	}
	return Duplicate, nil
}

// unknown is what to do with an event of a type that this node does not handle; nil to skip it.
func (rec *receiver) unknown(d *delivery, declared bool) step {
	switch {
	case declared, rec.c.UnknownType == UnknownStore:
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return rec.queues.park(ctx, tx, d, past{}, nil, Stored)
		}
	case rec.c.UnknownType == UnknownDead:
		err := fmt.Errorf("no node of the consumer handles the type %q", d.e.Type)
		l := letter{reason: "unknown type", holds: rec.c.HoldKey, errors: []string{err.Error()}, err: err, reopen: true}
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.ledger.bury(ctx, tx, d, l, Dead) }
	default:
		return nil
	}
}

// unhandled is unknown for an event that comes alone: it looks whether another node declares the type.
func (rec *receiver) unhandled(ctx context.Context, db rowsQuerier, d *delivery) (s step, skip bool, err error) {
	declared, err := rec.declarations.declared(ctx, db, []string{d.e.Type})
	if err != nil {
		return nil, false, err
	}
	s = rec.unknown(d, declared[d.e.Type])
	return s, s == nil, nil
}

type rowsQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// declared says which of the types are left for a node of the consumer: one that runs, or did not long ago (believeFor).
func (dec *declarations) declared(ctx context.Context, db rowsQuerier, types []string) (map[string]bool, error) {
	rows, err := db.Query(ctx, dec.sql.declared, dec.c.Consumer, types, believeFor.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("look for declared types: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for declared types: %w", err)
	}
	declared := make(map[string]bool, len(names))
	for _, name := range names {
		declared[name] = true
	}
	return declared, nil
}
