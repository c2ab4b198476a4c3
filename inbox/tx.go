package inbox

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotTheHandlers is what Commit and Rollback of a handler's transaction say.
var errNotTheHandlers = errors.New("holdfast ends the handler's transaction itself: return nil to commit, an error to roll back, or use a savepoint (tx.Begin)")

// handlerTx is the transaction that a handler is given. It cannot be ended by the handler, and it is of no use once the
// handler has returned: the connection may be in the next event's transaction by then.
type handlerTx struct {
	tx        pgx.Tx
	over      *atomic.Bool // of the handler: its savepoints share it
	savepoint bool         // may be ended
}

// closedTx answers every call with pgx.ErrTxClosed.
var closedTx = func() pgx.Tx {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx()
}()

func (t *handlerTx) now() pgx.Tx {
	if t.over.Load() {
		return closedTx
	}
	return t.tx
}

func (t *handlerTx) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := t.now().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handlerTx{tx: nested, over: t.over, savepoint: true}, nil
}

func (t *handlerTx) Commit(ctx context.Context) error {
	if !t.savepoint {
		return errNotTheHandlers
	}
	return t.now().Commit(ctx)
}

func (t *handlerTx) Rollback(ctx context.Context) error {
	if !t.savepoint {
		return errNotTheHandlers
	}
	return t.now().Rollback(ctx)
}

func (t *handlerTx) LargeObjects() pgx.LargeObjects { return t.now().LargeObjects() }
func (t *handlerTx) Conn() *pgx.Conn                { return t.now().Conn() }

func (t *handlerTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.now().CopyFrom(ctx, table, columns, rows)
}

func (t *handlerTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.now().SendBatch(ctx, b)
}

func (t *handlerTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.now().Prepare(ctx, name, sql)
}

func (t *handlerTx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	return t.now().Exec(ctx, sql, arguments...)
}

func (t *handlerTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.now().Query(ctx, sql, args...)
}

func (t *handlerTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.now().QueryRow(ctx, sql, args...)
}
