// Package handlertx is the transaction that a handler is given: one that it cannot end, and that is of no use to it once
// it has returned.
package handlertx

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a pgx.Tx whose Commit and Rollback only say why they are refused. Savepoints (Begin) of it can be ended. Once its
// owner has taken it back every call answers with pgx.ErrTxClosed: the connection may be in another transaction by then.
type Tx struct {
	tx      pgx.Tx
	over    *atomic.Bool // of the handler: its savepoints share it
	refusal error        // of Commit and Rollback; nil for a savepoint
}

// Give returns tx as a handler is given it, and what takes it back. Refusal is what its Commit and Rollback return.
func Give(tx pgx.Tx, refusal error) (given pgx.Tx, takeBack func()) {
	t := &Tx{tx: tx, over: new(atomic.Bool), refusal: refusal}
	return t, func() { t.over.Store(true) }
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

func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := t.now().Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{tx: nested, over: t.over}, nil
}

func (t *Tx) Commit(ctx context.Context) error {
	if t.refusal != nil {
		return t.refusal
	}
	return t.now().Commit(ctx)
}

func (t *Tx) Rollback(ctx context.Context) error {
	if t.refusal != nil {
		return t.refusal
	}
	return t.now().Rollback(ctx)
}

func (t *Tx) LargeObjects() pgx.LargeObjects { return t.now().LargeObjects() }
func (t *Tx) Conn() *pgx.Conn                { return t.now().Conn() }

func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.now().CopyFrom(ctx, table, columns, rows)
}

func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.now().SendBatch(ctx, b)
}

func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.now().Prepare(ctx, name, sql)
}

func (t *Tx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	return t.now().Exec(ctx, sql, arguments...)
}

func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.now().Query(ctx, sql, args...)
}

func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.now().QueryRow(ctx, sql, args...)
}
