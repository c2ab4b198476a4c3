package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
)

// This file opens a transaction and runs a function in it.

// transact runs f in a transaction on a connection of its own, and commits. The context that f gets bounds its statements: f runs
// no handler. The error is a *failure. By then the transaction is rolled back and the connection given back, so that the caller
// can record the failure in a new one.
func (rn *runner) transact(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return rn.transactHandler(ctx, &rn.c, rn.bounding(ctx, f))
}

// transactBeside is transact for a transaction beside that of a handler, which has a connection already.
func (rn *runner) transactBeside(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	conn, end, err := rn.acquireBeside(ctx)
	if err != nil {
		return err
	}
	defer end()
	return rn.transactOn(ctx, conn, &rn.c, rn.bounding(ctx, f))
}

// bounding is f under a context that bounds our own statements.
func (rn *runner) bounding(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) func(tx pgx.Tx) error {
	return func(tx pgx.Tx) error {
		bounded, cancel := rn.bounded(ctx)
		defer cancel()
		return f(bounded, tx)
	}
}

// transactHandler is transact for a function that runs a handler, under the time-outs of c. The function bounds its own statements.
func (rn *runner) transactHandler(ctx context.Context, c *Config, f func(tx pgx.Tx) error) error {
	conn, err := rn.acquire(ctx)
	if err != nil {
		return err
	}
	return rn.transactOn(ctx, conn, c, f)
}

// transactOn is transactHandler on a connection, which it gives back.
func (rn *runner) transactOn(ctx context.Context, conn *pgxpool.Conn, c *Config, f func(tx pgx.Tx) error) error {
	bounded, cancel := rn.bounded(ctx)
	tx, err := conn.BeginTx(bounded, pgx.TxOptions{BeginQuery: beginning(*c)})
	cancel()
	if err != nil {
		lost := conn.Conn().IsClosed()
		release(conn)
		return blame(ctx, fmt.Errorf("begin: %w", err), failure.Facts{ConnLost: lost})
	}
	if err := f(tx); err != nil {
		f := failureOf(ctx, tx, err)
		rn.abort(ctx, conn, tx, f)
		return f
	}
	return rn.commitTx(ctx, conn, tx)
}

// within is an attempt that runs a task in a transaction. The task runs no handler.
func (rn *runner) within(s task) attemptFunc {
	return func(ctx context.Context) (out Outcome, err error) {
		err = rn.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			out, err = s(ctx, tx)
			return err
		})
		return out, err
	}
}

// withinHandler is within for a task that runs a handler, under the time-outs of c.
func (rn *runner) withinHandler(c *Config, s task) attemptFunc {
	return func(ctx context.Context) (out Outcome, err error) {
		err = rn.transactHandler(ctx, c, func(tx pgx.Tx) (err error) {
			out, err = s(ctx, tx)
			return err
		})
		return out, err
	}
}

// task is what one transaction does with a delivery.
type task func(ctx context.Context, tx pgx.Tx) (Outcome, error)

// attemptFunc is one transaction from its beginning to its commit. Its error is a *failure.
type attemptFunc func(ctx context.Context) (Outcome, error)

// failureOf says whose fault it is that a transaction failed with err.
func failureOf(ctx context.Context, tx pgx.Tx, err error) *failure.Error {
	var c failure.Facts
	var h *failure.HandlerError
	if errors.As(err, &h) {
		c.InHandler, c.Behind, c.TimedOut, c.CutOff, c.Stopped = true, h.Behind, h.TimedOut, h.CutOff, h.Stopped
	}
	if h == nil || h.Hung == nil { // A handler that hangs may be using the connection.
		c.ConnLost = tx.Conn().IsClosed()
	}
	return blame(ctx, err, c)
}

// blame says whose fault err is. A context that has ended stopped what failed.
func blame(ctx context.Context, err error, c failure.Facts) *failure.Error {
	c.Stopped = c.Stopped || ctx.Err() != nil
	return &failure.Error{Fault: failure.FaultOf(err, c), Err: err}
}
