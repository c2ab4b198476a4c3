package sqltx

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// connector gives a sql.DB its only connection.
type connector struct{ conn *conn }

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.conn, nil }
func (c connector) Driver() driver.Driver                        { return noDriver{} }

type noDriver struct{}

func (noDriver) Open(string) (driver.Conn, error) {
	return nil, errors.New("sqltx has no connections of its own: use Lend")
}

// conn is a connection of database/sql in a transaction that somebody else has begun and ends. It uses nothing of the transaction but
// Exec and Query, so that an inbox's checks of its handlers hold. It never returns driver.ErrBadConn: database/sql would look for
// another connection.
type conn struct {
	ctx     context.Context // of the loan
	tx      pgx.Tx
	taking  atomic.Bool // Lend ends the loan
	refused atomic.Bool // the borrower tried to end the transaction
}

var (
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// Close leaves the connection to its lender.
func (c *conn) Close() error { return nil }

// BeginTx begins nothing: the transaction has begun. Lend calls it once.
func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return loan{c}, nil }

func (c *conn) Begin() (driver.Tx, error) { return loan{c}, nil }

// loan is the driver's half of the *sql.Tx.
type loan struct{ *conn }

func (l loan) Commit() error { return l.refuse() }

func (l loan) Rollback() error {
	if l.taking.Load() {
		return nil
	}
	return l.refuse()
}

func (l loan) refuse() error {
	l.refused.Store(true)
	return ErrLent
}

// CheckNamedValue leaves arguments as they are: pgx knows more types than database/sql, and its Valuers too.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return errors.New("sqltx has no named arguments: use $1, $2 and so on")
	}
	return nil
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	ctx, done := c.bounded(ctx)
	defer done()
	tag, err := c.tx.Exec(ctx, query, values(nil, args)...)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(tag.RowsAffected()), nil
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	ctx, done := c.bounded(ctx)
	got, err := c.tx.Query(ctx, query, values([]any{formats}, args)...)
	if err != nil {
		done()
		return nil, err
	}
	// The columns are known after the first row or the end, and database/sql asks for them first.
	r := &rows{rows: got, done: done, ahead: true, more: got.Next()}
	if err := got.Err(); err != nil {
		_ = r.Close() // it is the same error
		return nil, err
	}
	return r, nil
}

func values(all []any, args []driver.NamedValue) []any {
	for _, a := range args {
		all = append(all, a.Value)
	}
	return all
}

// bounded returns a context that also ends with the loan's. done releases it, after the statement.
func (c *conn) bounded(ctx context.Context) (bounded context.Context, done func()) {
	if ctx == c.ctx || c.ctx.Done() == nil {
		return ctx, func() {}
	}
	bounded, cancel := context.WithCancelCause(ctx)
	if c.ctx.Err() != nil { // AfterFunc would call it a moment later, and the statement might run meanwhile.
		cancel(context.Cause(c.ctx))
	}
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return bounded, func() { stop(); cancel(nil) }
}

func (c *conn) Prepare(query string) (driver.Stmt, error) { return statement{c, query}, nil }

func (c *conn) PrepareContext(_ context.Context, query string) (driver.Stmt, error) {
	return statement{c, query}, nil
}

// statement is a prepared statement that is only its text. pgx has a cache of those that it prepares.
type statement struct {
	conn  *conn
	query string
}

var (
	_ driver.StmtExecContext  = statement{}
	_ driver.StmtQueryContext = statement{}
)

func (statement) Close() error  { return nil }
func (statement) NumInput() int { return -1 } // Postgres counts them

func (s statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

func (s statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

// Exec and Query are never called: database/sql prefers the methods with a context.
func (statement) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }
func (statement) Query([]driver.Value) (driver.Rows, error)  { return nil, driver.ErrSkip }
