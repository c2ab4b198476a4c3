// Package handlertx is the transaction that a handler gets. The handler cannot end it, and cannot use it after it has
// returned.
package handlertx

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a pgx.Tx whose Commit and Rollback only say why they are refused. Its savepoints (Begin) can be ended. Once its
// owner has taken it back, every call answers with pgx.ErrTxClosed: the connection may be in another transaction by then.
type Tx struct {
	tx pgx.Tx
	*turn
	refusal error // of Commit and Rollback; nil for a savepoint
}

// turn is what the handler's transaction and its savepoints share.
type turn struct {
	ctx  context.Context // the handler's
	over atomic.Bool     // it has returned
	own  atomic.Pointer[context.Context]
}

// Give returns tx for a handler that runs under ctx. Refusal is what its Commit and Rollback return.
func Give(ctx context.Context, tx pgx.Tx, refusal error) *Tx {
	return &Tx{tx: tx, turn: &turn{ctx: ctx}, refusal: refusal}
}

// TakeBack ends the handler's use of it.
func (t *Tx) TakeBack() { t.over.Store(true) }

// RanOut says whether the handler closed the connection: by a time-out of its own, which ran out during the last
// statement.
func (t *Tx) RanOut() bool {
	own := t.own.Load()
	return own != nil && errors.Is((*own).Err(), context.DeadlineExceeded)
}

// uses records under which context the connection is used: own is the last one that the handler made itself. A call on a
// closed connection does not count, because it is not what closed it.
func (t *turn) uses(ctx context.Context, conn *pgx.Conn) {
	switch {
	case conn.IsClosed():
	case ctx == t.ctx:
		if t.own.Load() != nil {
			t.own.Store(nil)
		}
	default:
		t.own.Store(&ctx)
	}
}

// closedTx answers every call with pgx.ErrTxClosed.
var closedTx = func() pgx.Tx {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx()
}()

func (t *Tx) now() pgx.Tx {
	if t.over.Load() {
		return closedTx
	}
	return t.tx
}

// under is now for a call that takes a context.
func (t *Tx) under(ctx context.Context) pgx.Tx {
	tx := t.now()
	if tx == t.tx {
		t.uses(ctx, tx.Conn())
	}
	return tx
}

func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := t.under(ctx).Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{tx: nested, turn: t.turn}, nil
}

func (t *Tx) Commit(ctx context.Context) error {
	if t.refusal != nil {
		return t.refusal
	}
	return t.under(ctx).Commit(ctx)
}

func (t *Tx) Rollback(ctx context.Context) error {
	if t.refusal != nil {
		return t.refusal
	}
	return t.under(ctx).Rollback(ctx)
}

func (t *Tx) LargeObjects() pgx.LargeObjects { return t.now().LargeObjects() }
func (t *Tx) Conn() *pgx.Conn                { return t.now().Conn() }

func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.under(ctx).CopyFrom(ctx, table, columns, rows)
}

func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.under(ctx).SendBatch(ctx, b)
}

func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.under(ctx).Prepare(ctx, name, sql)
}

func (t *Tx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	return t.under(ctx).Exec(ctx, sql, arguments...)
}

func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.under(ctx).Query(ctx, sql, args...)
}

func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.under(ctx).QueryRow(ctx, sql, args...)
}
