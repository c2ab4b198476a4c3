package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/steps"
)

// Errors of Step, beside those of package steps.
var (
	errNoRequest   = errors.New("the context belongs to no guarded request, or its handler has returned")
	errNoDatabase  = errors.New("the keys are not in Postgres: make the Guard with New, not NewEphemeral")
	errStepsOwn    = errors.New("Step ends the step's transaction: return an error to undo it, or use a savepoint (tx.Begin)")
	errUndone      = errors.New("the connection was lost, and the step was rolled back")
	errStepUnknown = errors.New("the answer to its COMMIT was lost: it may have been committed")
)

// Step runs one atomic phase of a handler (Route.Lease). What fn writes through tx, including events of outbox.Write,
// commits together with fn's result (as JSON) and the note that the step is done. If the request runs again, in this
// process or another, a finished step returns its stored result and fn does not run. So divide a handler where it calls
// other systems, and make such calls between two steps, with DownstreamKey:
//
//	order, err := idempotency.Step(ctx, "order", insertOrder)      // committed
//	charge, err := gateway.Charge(ctx, idempotency.DownstreamKey(ctx, "charge"), order.Cents)
//	paid, err := idempotency.Step(ctx, "paid", markPaid(order, charge))
//
// If fn returns an error, its writes are undone and Step returns the error. Step returns ErrLeaseLost if another
// request has the key now: nothing was written, and nothing more will be. Steps run one at a time. Use a name once in a
// request, and keep it the same in every version of the handler. fn may run several times, after serialization
// failures. The result goes through JSON, the first time too, and has at most Route.MaxResponse bytes of JSON. In
// transaction mode fn runs in Tx(ctx) under a savepoint, and is committed with the answer.
func Step[T any](ctx context.Context, name string, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (T, error) {
	h := handlingOf(ctx)
	var none T
	switch {
	case h == nil || h.over.Load():
		return none, fmt.Errorf("step %q: %w", name, errNoRequest)
	case h.rt.g.pool == nil:
		return none, fmt.Errorf("step %q: %w", name, errNoDatabase)
	}
	return steps.Do[T](ctx, &h.steps, name, func(ctx context.Context) ([]byte, error) {
		do := func(_ context.Context, tx pgx.Tx) ([]byte, error) {
			value, err := fn(ctx, tx)
			if err != nil {
				return nil, foreign.Error(err)
			}
			return steps.Text(value, h.rt.o.MaxResponse)
		}
		if h.tx != nil {
			return underSavepoint(ctx, h.tx, do)
		}
		return h.committed(ctx, name, do)
	})
}

// work is a step's function. It returns the result as JSON.
type work func(ctx context.Context, tx pgx.Tx) ([]byte, error)

// underSavepoint runs a step in transaction mode.
func underSavepoint(ctx context.Context, tx pgx.Tx, do work) (result []byte, err error) {
	err = pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
		given := handlertx.Give(ctx, nested, errStepsOwn)
		defer given.TakeBack()
		var err error
		if result, err = do(ctx, given); err == nil && nested.Conn().PgConn().TxStatus() == 'E' {
			err = fmt.Errorf("%w: a statement failed, but the step returned no error", errHandler)
		}
		return err
	})
	return result, err
}

// committed runs a step in lease mode, in a transaction of its own.
func (h *handling) committed(ctx context.Context, name string, do work) (result []byte, err error) {
	for rerun := 0; ; rerun++ {
		result, err = h.tryStep(ctx, name, do)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") && rerun < maxReruns && ctx.Err() == nil {
			continue
		}
		switch {
		case errors.Is(err, ErrLeaseLost) && h.lease != nil:
			h.lease.lose(ErrLeaseLost)
		case err != nil && errors.Is(context.Cause(ctx), ErrLeaseLost):
			err = fmt.Errorf("%w: %w", ErrLeaseLost, err)
		}
		return result, err
	}
}

// tryStep tries a step once.
func (h *handling) tryStep(ctx context.Context, name string, do work) (result []byte, err error) {
	g := h.rt.g
	kt := &keyTx{}
	if h.lease != nil {
		defer h.lease.Unlock()
	}
	defer func() { g.rollback(kt) }() // does nothing after a commit
	result, err = h.openStep(ctx, kt, name)
	if err != nil || result != nil {
		return result, err
	}
	kt.ran = true
	given := handlertx.Give(ctx, kt.tx, errStepsOwn)
	defer given.TakeBack()
	if result, err = do(ctx, given); err != nil {
		return nil, err
	}
	given.TakeBack()
	if err := fit(kt, keepAll); err != nil {
		return nil, err
	}
	// From here on the step is carried out even if the client is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
	defer cancel()
	begun := time.Now()
	err = h.commitStep(ctx, kt, name, result)
	if errors.Is(err, errUnknown) {
		result, err = h.confirmStep(ctx, name)
	}
	if err == nil && h.lease != nil {
		h.lease.Extended(begun)
	}
	return result, err
}

// openStep begins a step's transaction, locks the row of the request's fence, and checks whether the step is done. If
// it is, the result is not nil.
func (h *handling) openStep(ctx context.Context, kt *keyTx, name string) (result []byte, err error) {
	g, o := h.rt.g, h.rt.o
	waiting, cancel := context.WithTimeoutCause(ctx, g.c.AcquireTimeout, errPoolExhausted)
	kt.conn, err = g.pool.Acquire(waiting)
	err = caused(waiting, err)
	cancel()
	if err != nil {
		kt.conn = nil
		return nil, fmt.Errorf("acquire connection: %w", err)
	}
	if h.lease != nil {
		h.lease.Lock()
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: o.Isolation})
	// A client that is silent for longer than a lease inside a step counts as dead. Until then nobody can take the
	// request over.
	b.Queue(g.sql.stepOpen, millis(min(o.Timeout, o.Lease)+idleMargin), millis(o.Timeout))
	if h.lease != nil {
		k := h.lease.key
		b.Queue(g.sql.stepLock, k.Scope, k.Operation, k.Key, h.lease.fence)
		b.Queue(g.sql.stepLook, k.Scope, k.Operation, k.Key, name)
	}
	br := kt.conn.SendBatch(ctx, b)
	kt.tx = br.Tx()
	mine := true
	if _, err = br.Exec(); err == nil {
		_, err = br.Exec()
	}
	if err == nil && h.lease != nil {
		var tag pgconn.CommandTag
		if tag, err = br.Exec(); err == nil {
			mine = tag.RowsAffected() == 1
			var text string
			if err = br.QueryRow().Scan(&text); err == nil {
				result = []byte(text)
			} else if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("begin: %w", err)
	case !mine:
		return nil, ErrLeaseLost
	}
	return result, nil
}

// commitStep stores a step's result and commits. An error that wraps errUnknown means that the commit may have
// happened.
func (h *handling) commitStep(ctx context.Context, kt *keyTx, name string, result []byte) error {
	b := &pgx.Batch{}
	if h.lease != nil {
		k, o := h.lease.key, h.rt.o
		b.Queue(h.rt.g.sql.stepDone, k.Scope, k.Operation, k.Key, h.lease.fence, name, o.Lease.Microseconds(), max(o.TTL, h.rt.g.c.KeepUnfinished).Microseconds(), string(result))
	}
	var ended pgconn.CommandTag
	b.Queue(commitSQL).Exec(func(tag pgconn.CommandTag) error { ended = tag; return nil })
	err := kt.conn.SendBatch(ctx, b).Close()
	if err = uncommitted(ended.String(), err); err == nil {
		kt.release()
		return nil
	}
	h.rt.g.rollback(kt) // before confirmStep looks who has the row
	return fmt.Errorf("store result and commit: %w", err)
}

// confirmStep determines whether a COMMIT without an answer was carried out. Locking the row waits until that
// transaction has ended.
func (h *handling) confirmStep(ctx context.Context, name string) (result []byte, err error) {
	if h.lease == nil {
		return nil, errStepUnknown
	}
	for try := 1; ; try++ {
		kt := &keyTx{}
		result, err = h.openStep(ctx, kt, name)
		h.rt.g.rollback(kt)
		switch {
		case err == nil && result != nil:
			return result, nil
		case err == nil:
			return nil, errUndone
		case errors.Is(err, ErrLeaseLost):
			return nil, err
		}
		if !pause.For(ctx, spread(try, h.rt.g.random())) {
			return nil, fmt.Errorf("%w: %w", errStepUnknown, err)
		}
	}
}
