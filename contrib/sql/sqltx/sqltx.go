// Package sqltx lends a transaction of pgx as a *sql.Tx, for code that is written for database/sql or for a library on top of it. A
// handler of package inbox and an idempotent route get a pgx.Tx; with this package their code may be what writes through GORM, sqlc,
// ent or Bun elsewhere.
//
//	orders.Handle("order.placed", sqltx.Handler(func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error { … }))
//
// It is the same transaction on the same connection. Time-outs, the inbox's row and its verdict on the handler are as for a handler
// with a pgx.Tx.
package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

// ErrLent is what Commit and Rollback of a lent transaction return. They end nothing but the loan: the *sql.Tx is of no use any more,
// and Lend returns this error too, unless the function returned another one.
var ErrLent = errors.New("the transaction is lent: who lent it ends it, after the function has returned")

// Lend calls f with tx as a *sql.Tx, and returns its error. The *sql.Tx is good until f returns. Rows and statements that f left open
// are closed then, and whatever kept the *sql.Tx gets sql.ErrTxDone. f must not use it from several goroutines at once, nor tx itself
// meanwhile.
//
// Commit and Rollback are refused with ErrLent. Savepoints work as statements: "savepoint a", "rollback to savepoint a", which is what
// nested transactions of GORM and Bun send. Every statement also ends with ctx, even one that was called without a context. Values
// come back as from pgx's own driver for database/sql, and arguments go to pgx as they are. A prepared statement of f is the text
// alone: pgx prepares it when it runs, and a mistake in it shows then.
func Lend(ctx context.Context, tx pgx.Tx, f func(tx *sql.Tx) error) (err error) {
	if tx == nil {
		return errors.New("lend the transaction: tx is nil: it must be a transaction that has begun")
	}
	c := &conn{ctx: ctx, tx: tx}
	db := sql.OpenDB(connector{c})
	defer db.Close() // closes nothing: conn.Close leaves the connection alone
	// The loan does not end with ctx, statements do: a *sql.Tx whose context ends is rolled back by a goroutine of its own.
	lent, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("lend the transaction: %w", err)
	}
	defer func() { // also if f panics
		c.taking.Store(true)
		_ = lent.Rollback() // waits for its statements, and closes rows and prepared ones; sql.ErrTxDone after an ErrLent
	}()
	if err := f(lent); err != nil {
		return err
	}
	if c.refused.Load() {
		return fmt.Errorf("lend the transaction: the function tried to end it: %w", ErrLent)
	}
	return nil
}

// Handler makes a handler for package inbox of one that takes a *sql.Tx: what Lend says of f holds for h. A handler that tries to
// commit or roll back fails for good, because it would again, and its event becomes a dead letter.
func Handler(h func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error) func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		return forGood(Lend(ctx, tx, func(tx *sql.Tx) error { return h(ctx, tx, e) }))
	}
}

// BatchHandler is Handler for several events of one type, in their order.
func BatchHandler(h func(ctx context.Context, tx *sql.Tx, events []holdfast.Event) error) func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
	return func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		return forGood(Lend(ctx, tx, func(tx *sql.Tx) error { return h(ctx, tx, events) }))
	}
}

// forGood makes an ErrLent permanent.
func forGood(err error) error {
	if errors.Is(err, ErrLent) {
		return retry.Permanent(err)
	}
	return err
}
