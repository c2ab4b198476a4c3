package handlertx

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Unlock has the session give up its advisory locks. Those of the session outlive a rollback, and whoever gets the connection next would
// hold what a handler took and did not give back.
const Unlock = `select pg_advisory_unlock_all()`

// undo is one message: a pooler that gives the session to another client after each transaction does not do so between the two.
const undo = `rollback; ` + Unlock

// Undo rolls back the transaction of a handler that failed, or whose COMMIT did, with the locks that it left on the session. If that cannot
// be sent, the connection is closed, and Postgres does the same.
func Undo(ctx context.Context, tx pgx.Tx) {
	conn := tx.Conn()
	if conn == nil { // It was never begun.
		return
	}
	if _, err := conn.Exec(ctx, undo, pgx.QueryExecModeSimpleProtocol); err != nil {
		_ = tx.Rollback(ctx)
	}
}
