package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file opens, commits and rolls back a transaction, and leaves the connection of a handler that hangs.

// runner runs handlers, each in a transaction.
type runner struct {
	*env
	hung atomic.Int64 // handlers that have not returned
}

// transact runs f in a transaction on a connection of its own, and commits. The error, if any, is a *failure. The
// transaction is rolled back and the connection given back before it returns, so that the code that records the failure
// begins afresh.
func (rn *runner) transact(ctx context.Context, f func(tx pgx.Tx) error) error {
	conn, err := rn.pool.Acquire(ctx)
	if err != nil {
		return blame(ctx, fmt.Errorf("acquire connection: %w", err), failureFacts{connLost: true})
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: rn.sql.begin})
	if err != nil {
		lost := conn.Conn().IsClosed()
		conn.Release()
		return blame(ctx, fmt.Errorf("begin: %w", err), failureFacts{connLost: lost})
	}
	if err := f(tx); err != nil {
		return rn.failed(ctx, conn, tx, err)
	}
	return rn.commitTx(ctx, conn, tx)
}

// failed ends a transaction in which something failed, and gives its connection back. Where a handler hangs, the
// connection is closed under it and never returned to the pool: the handler would write into another's transaction.
func (rn *runner) failed(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx, err error) error {
	f := failureOf(ctx, tx, err)
	var h *handlerError
	if errors.As(err, &h) && h.hung != nil {
		rn.abandon(conn, h.hung)
		return f
	}
	rollback(ctx, tx)
	conn.Release()
	return f
}

// commitTx commits, whatever has become of ctx, and gives the connection back.
func (rn *runner) commitTx(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx) error {
	defer conn.Release()
	if conn.Conn().IsClosed() { // COMMIT was never sent, so this is not in doubt.
		return blame(ctx, errors.New("the connection was lost before commit"), failureFacts{connLost: true})
	}
	failpoint.Hit(failpoint.InboxCommitting)
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	err := tx.Commit(commit)
	cancel()
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = fmt.Errorf("a statement failed, but the handler returned nil: %w", err)
	}
	if err != nil {
		return &failure{faultOf(err, failureFacts{committing: true}), fmt.Errorf("commit: %w", err)}
	}
	return nil
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // If it cannot be sent the connection is closed, and Postgres rolls back by itself.
}

// abandon leaves a hung handler behind with a dead connection.
func (rn *runner) abandon(pooled *pgxpool.Conn, returned <-chan error) {
	conn := pooled.Hijack() // Of all methods only those of the net.Conn and CancelRequest may be called beside the handler.
	pg := conn.PgConn()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
		defer cancel()
		_ = pg.CancelRequest(ctx) // Frees its locks now rather than when its statement ends.
		_ = pg.Conn().Close()
		<-returned
		rn.hung.Add(-1)
		_ = conn.Close(ctx)
	}()
}

// finishTimeout bounds what we do on our own account when the caller's context is over: rolling back, committing.
const finishTimeout = 10 * time.Second

// within is an attempt of a step.
func (rn *runner) within(s step) attemptFunc {
	return func(ctx context.Context) (out Outcome, err error) {
		err = rn.transact(ctx, func(tx pgx.Tx) (err error) {
			out, err = s(ctx, tx)
			return err
		})
		return out, err
	}
}

// step is what one transaction does with a delivery.
type step func(ctx context.Context, tx pgx.Tx) (Outcome, error)

// attemptFunc is one transaction from its beginning to its commit. Its error is a *failure.
type attemptFunc func(ctx context.Context) (Outcome, error)
