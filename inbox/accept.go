package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/retry"
)

// This file takes in events that come alone, in a transaction of their own or in the caller's.

// storeAlone is TryStore (try) and Store: it stores an event in a transaction of its own. hash is as in newDeliveryOf. kept says that the
// sender keeps an event that is Skipped: then it is neither counted nor reported.
func (rec *receiver) storeAlone(ctx context.Context, e holdfast.Event, hash []byte, try, kept bool) (Outcome, error) {
	if err := rec.registry.start(); err != nil {
		return "", err
	}
	if err := rec.c.checkEvent(e); err != nil {
		return "", fmt.Errorf("store event: %w", refusedEvent{err})
	}
	d := rec.registry.newDeliveryOf(e, hash)
	d.ctx = ctx
	if try {
		d.manner = mannerTry
	}
	s := func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return rec.queues.store(ctx, tx, d, past{}, nil, Stored)
	}
	if d.h == nil && len(rec.registry.types) > 0 {
		other, skip, err := rec.unhandled(ctx, rec.pool, d)
		if err != nil {
			return "", fmt.Errorf("store event: %w", err)
		}
		if skip && !kept {
			rec.skips.note(e)
			rec.report(d, Skipped, 0)
		}
		if skip {
			return Skipped, nil
		}
		s = other
	}
	d.h = nil // No task of a Store runs the handler.
	if try {
		s = rec.trying(d, s)
	}
	out, err := rec.receive(ctx, rec.newIntake(d, s, nil), nil)
	if err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	return out, nil
}

// receiveAlone is TryReceive (try) and Receive: it handles an event in transactions of its own. hash is as in newDeliveryOf.
func (rec *receiver) receiveAlone(ctx context.Context, e holdfast.Event, hash []byte, try bool) (Outcome, error) {
	if err := rec.registry.start(); err != nil {
		return "", err
	}
	if err := rec.c.checkEvent(e); err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	if err := rec.runner.tooManyHung(); err != nil {
		return "", err
	}
	d := rec.registry.newDeliveryOf(e, hash)
	d.ctx = ctx
	if try {
		d.manner = mannerTry
	}
	paused, _ := rec.pauses.now(ctx, rec.pool) // Without an answer the next statement meets the same, and knows how to wait.
	var s task                                 // nil: the handler runs
	if d.h != nil && (paused || rec.dependencies.waits(e.Type)) {
		s = rec.storing(d)
		if try {
			s = rec.trying(d, s)
		}
	}
	if d.h == nil && s == nil {
		other, skip, err := rec.unhandled(ctx, rec.pool, d)
		if err != nil {
			return "", fmt.Errorf("receive event: %w", err)
		}
		if skip {
			rec.skips.note(e)
			rec.report(d, Skipped, 0)
			return Skipped, nil
		}
		s = other
		if try {
			s = rec.trying(d, s)
		}
	}
	if s == nil {
		t := rec.turnsOf(e.Type)
		if !t.Enter(ctx.Done()) {
			return "", fmt.Errorf("receive event: wait for a turn of the type %q: %w", e.Type, ctx.Err())
		}
		defer t.Leave()
	}
	out, err := rec.receive(ctx, rec.newIntake(d, s, nil), nil)
	if err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	return out, nil
}

// receiveTx is ReceiveTx.
func (rec *receiver) receiveTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	if err := rec.registry.start(); err != nil {
		return "", err
	}
	if err := rec.c.checkEvent(e); err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	d := rec.registry.newDelivery(e)
	d.manner = mannerCallers
	paused, err := rec.pauses.now(ctx, tx)
	if err != nil {
		return "", fmt.Errorf("receive event: %w", err)
	}
	first := func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.admission.admit(ctx, tx, d, 1) }
	switch {
	case d.h != nil && (paused || rec.dependencies.waits(e.Type)), d.h != nil && !rec.turnsOf(e.Type).Try():
		first = rec.storing(d)
	case d.h == nil:
		s, skip, err := rec.unhandled(ctx, tx, d)
		if err != nil {
			return "", fmt.Errorf("receive event: %w", err)
		}
		if skip {
			rec.skips.note(e)
			return Skipped, nil
		}
		first = s
	default:
		defer rec.turnsOf(e.Type).Leave()
	}
	out, failed, err := rec.underSavepoint(ctx, tx, first)
	if err != nil {
		rec.queues.quota.leave(d)
		return "", fmt.Errorf("receive event: %w", err)
	}
	if failed == nil {
		return out, nil
	}
	if failed.Fault != failure.FaultEvent && failed.Fault != failure.FaultUnavailable || tx.Conn().IsClosed() || tx.Conn().PgConn().TxStatus() == 'I' { // Nothing may be written any more.
		return "", fmt.Errorf("receive event: %w", failed.Err)
	}
	h := failure.History{}
	h.Alone = rec.dependencies.blamed(ctx, failed, []holdfast.Event{e}, h)
	h, v := h.After(rec.of(e.Type).Retry, *failed, time.Now(), rec.random())
	if v.Failure.Fault == failure.FaultUnavailable {
		v.Delay = max(v.Delay, rec.dependencies.behind(e.Type))
	}
	next, _ := rec.afterFailure(d, h, v, nil)
	if out, err = next(ctx, tx); err != nil {
		return "", fmt.Errorf("receive event: record failure: %w", err)
	}
	return out, nil
}

// refusedEvent is the error of an event that is refused for what it is, whenever it comes: retry.Classify says so.
type refusedEvent struct{ error }

func (refusedEvent) RetryClass() retry.Class { return retry.Validation }
func (r refusedEvent) Unwrap() error         { return r.error }

// storeTx is StoreTx.
func (rec *receiver) storeTx(ctx context.Context, tx pgx.Tx, e holdfast.Event) (Outcome, error) {
	if err := rec.registry.start(); err != nil {
		return "", err
	}
	if err := rec.c.checkEvent(e); err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	d := rec.registry.newDelivery(e)
	d.manner = mannerCallers
	out, err := rec.queues.store(ctx, tx, d, past{}, nil, Stored)
	if err != nil {
		return "", fmt.Errorf("store event: %w", err)
	}
	return out, nil
}

// underSavepoint runs a task in the caller's transaction, under a savepoint. When the handler fails, the savepoint undoes
// the task, and failed holds the error and whose fault it is. A handler that hangs costs the connection, and is an error.
func (rec *receiver) underSavepoint(ctx context.Context, tx pgx.Tx, s task) (out Outcome, failed *failure.Error, err error) {
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
	var h *failure.HandlerError
	if !errors.As(err, &h) {
		rollbackTo(ctx, savepoint)
		return "", nil, err
	}
	if h.Hung != nil { // The handler may still write: it must not write into what the caller does next.
		_ = tx.Conn().PgConn().Conn().Close()
		go func() { <-h.Hung; rec.runner.hung.Add(-1) }()
		return "", nil, err
	}
	failed = failureOf(ctx, tx, err)
	rollbackTo(ctx, savepoint)
	return "", failed, nil
}

// storing is the task for an event whose consumer is paused, whose type has no free turn, or whose handler needs something that is away. Run
// handles it when that is over.
func (rec *receiver) storing(d *delivery) task {
	d.h = nil // No task runs the handler.
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return rec.queues.store(ctx, tx, d, past{}, nil, Stored)
	}
}

// unknown is the task for an event of a type that this node does not handle. It is nil when the event is skipped.
func (rec *receiver) unknown(d *delivery, declared bool) task {
	switch {
	case declared, rec.c.UnknownType == UnknownStore:
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return rec.queues.store(ctx, tx, d, past{}, nil, Stored)
		}
	case rec.c.UnknownType == UnknownDead:
		err := fmt.Errorf("no node of the consumer handles the type %q", d.e.Type)
		l := letter{
			reason: "unknown type",
			holds:  rec.c.HoldKey,
			errors: []string{err.Error()},
			err:    err,
			reopen: true,
		}
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return rec.ledger.deadLetter(ctx, tx, d, l, Dead)
		}
	default:
		return nil
	}
}

// unhandled is unknown for an event that comes alone. It asks whether another node declares the type.
func (rec *receiver) unhandled(ctx context.Context, db rowsQuerier, d *delivery) (s task, skip bool, err error) {
	ctx, cancel := rec.bounded(ctx)
	defer cancel()
	declared, err := rec.declarations.declared(ctx, db, []string{d.e.Type})
	if err != nil {
		return nil, false, err
	}
	s = rec.unknown(d, declared[d.e.Type])
	return s, s == nil, nil
}

// stale is the task for an event below the position that the partition had when this node was given it. It writes a dead
// letter, unless a row shows what became of the event.
func (rec *receiver) stale(d *delivery) task {
	l := letter{reason: "stale: it lies below the consumer's position, and no row shows that it was handled"}
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return rec.ledger.deadLetter(ctx, tx, d, l, Stale)
	}
}
