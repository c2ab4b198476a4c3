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

// This file ends a transaction: it commits, or rolls back, or closes the connection of a handler that hangs.

// runner runs handlers, each in a transaction.
type runner struct {
	*env
	hung atomic.Int64 // handlers that have not returned
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

// abort ends a transaction in which something failed, and gives its connection back. Where a handler hangs, the
// connection is closed under it and never returned to the pool: the handler would write into another's transaction.
func (rn *runner) abort(ctx context.Context, conn *pgxpool.Conn, tx pgx.Tx, f *failure) {
	var h *handlerError
	if errors.As(f.err, &h) && h.hung != nil {
		rn.abandon(conn, h.hung)
		return
	}
	rollback(ctx, tx)
	conn.Release()
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
