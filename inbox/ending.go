package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/handlertx"
)

// This file ends a transaction: it commits, rolls back, or closes the connection of a handler that hangs.

// runner runs handlers, each in a transaction.
type runner struct {
	*env
	dependencies *dependencies
	hung         atomic.Int64 // handlers that have not returned
	own          sync.Map     // types whose handlers need transactions of their own
}

// needsItsOwn reports that a handler of the type has done what only one with a transaction of its own may do.
func (rn *runner) needsItsOwn(eventType string) bool {
	_, needs := rn.own.Load(eventType)
	return needs
}

// commitTx commits, even when ctx has ended, and gives the connection back.
func (rn *runner) commitTx(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx) error {
	defer release(conn)
	if conn.Conn().IsClosed() { // COMMIT was never sent, so nothing is in doubt.
		return blame(ctx, errors.New("the connection was lost before commit"), failure.Facts{ConnLost: true})
	}
	failpoint.Hit(failpoint.InboxCommitting)
	commit, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	err := tx.Commit(commit)
	cancel()
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		err = fmt.Errorf("a statement failed, but the handler returned nil: %w", err)
	}
	if err != nil {
		rollback(ctx, tx)
		return &failure.Error{Fault: failure.FaultOf(err, failure.Facts{Committing: true}), Err: fmt.Errorf("commit: %w", err)}
	}
	return nil
}

// abort rolls back a transaction that failed, and gives its connection back. When a handler hangs, abort closes the connection
// and never returns it to the pool: the handler could write into another transaction. So it does where a handler has ended its transaction:
// what it did to the session since would not be rolled back.
func (rn *runner) abort(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx, f *failure.Error) {
	var h *failure.HandlerError
	if errors.As(f.Err, &h) && h.Hung != nil {
		rn.abandon(conn, h.Hung)
		return
	}
	if h != nil && h.Ended {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		_ = conn.Conn().Close(bounded)
		cancel()
	} else {
		rollback(ctx, tx)
	}
	release(conn)
}

// rollback rolls back a transaction in which a handler may have run.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	handlertx.Undo(ctx, tx)
}

// rollbackTo rolls back to a savepoint in a transaction of the caller, whose session is the caller's, too.
func rollbackTo(ctx context.Context, savepoint pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	_ = savepoint.Rollback(ctx) // If it cannot be sent, the connection is closed, and Postgres rolls back.
}

// abandon leaves a handler that hangs, and closes its connection.
func (rn *runner) abandon(pooled *pgxpool.Conn, returned <-chan error) {
	conn := pooled.Hijack() // Only CancelRequest and the methods of net.Conn may be called while the handler runs.
	pg := conn.PgConn()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
		defer cancel()
		_ = pg.CancelRequest(ctx) // Frees its locks now, not when its statement ends.
		_ = pg.Conn().Close()
		<-returned
		rn.hung.Add(-1)
		_ = conn.Close(ctx)
	}()
}
