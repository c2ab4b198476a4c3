package simdb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Conn is a client's way to the database: it takes the relay's own statements, by the names in their first lines, with
// the arguments that pgx would get, and answers with the rows that Scan would.
type Conn struct {
	DB    *DB
	Hooks Hooks
}

// Hooks come before and after each statement. Any may be nil.
type Hooks struct {
	Before  func(name string) error // on its way to the server: an error is the client's, and the statement is not carried out
	After   func(name string) error // carried out: an error is the client's instead of the answer
	Blocked func(name string) error // it waits for a row lock: nil looks again
	Lost    func(tx *Tx)            // the connection of a transaction is lost; nil rolls back at once

	// GivenUp comes where Before has failed for a statement of its own: it may still be on its way, and arrive when arrive
	// is called.
	GivenUp func(name string, err error, arrive func())
}

var (
	errBlocked  = errors.New("the row is locked")
	errLockTime = errors.New("canceling statement due to lock timeout")
	errGone     = errors.New("terminating connection: the transaction has ended")
)

// call is a statement being carried out.
type call struct {
	db   *DB
	tx   *Tx
	name string
	args []any
	rows [][]any
	tag  int
}

func (c *call) row(values ...any) { c.rows = append(c.rows, values) }

// refused is the error of a statement for one of the rows that it touches.
func (c *call) refused(id string) error {
	if c.db.Refuse == nil {
		return nil
	}
	return c.db.Refuse(c.name, id)
}

// anyRefused is refused of rows of parked; nil stands for none.
func (c *call) anyRefused(rows []*cell[Parked]) error {
	for _, q := range rows {
		if q == nil {
			continue
		}
		p, _ := q.see(c.tx)
		if err := c.refused(p.ID); err != nil {
			return err
		}
	}
	return nil
}

// nameOf is the name in a statement's first line: "-- relay.page".
func nameOf(sql string) string {
	if !strings.HasPrefix(sql, "-- relay.") {
		panic("the fake does not know " + sql)
	}
	name, _, _ := strings.Cut(sql[len("-- relay."):], "\n")
	return name
}

func (c *Conn) before(ctx context.Context, name string) error {
	if c.Hooks.Before == nil {
		return nil
	}
	crashes := c.DB.Crashes
	if err := c.Hooks.Before(name); err != nil {
		return err
	}
	if c.DB.Crashes != crashes {
		return errGone
	}
	return context.Cause(ctx) // cancelled on its way
}

func (c *Conn) after(ctx context.Context, name string) error {
	if c.Hooks.After == nil {
		return nil
	}
	if err := c.Hooks.After(name); err != nil {
		return err
	}
	return context.Cause(ctx) // cancelled while it was carried out
}

// run carries a statement out, in tx or on its own.
func (c *Conn) run(ctx context.Context, tx *Tx, sql string, args []any) (*call, error) {
	name := nameOf(sql)
	handler, known := handlers[name]
	if !known {
		panic("the fake does not know " + name)
	}
	crashes := c.DB.Crashes
	if err := c.before(ctx, name); err != nil {
		if tx == nil && c.Hooks.GivenUp != nil {
			c.Hooks.GivenUp(name, err, func() {
				if c.DB.Crashes == crashes { // The connection ends with the server.
					c.arrive(name, handler, args)
				}
			})
		}
		return nil, err
	}
	for {
		in := tx
		if in == nil {
			in = c.DB.Begin()
		} else if in.state != running {
			return nil, errGone
		}
		in.at = c.DB.Up()
		done := &call{db: c.DB, tx: in, name: name, args: args}
		err := handler(done)
		if tx == nil {
			if err != nil {
				in.Rollback()
			} else if err := in.Commit(); err != nil {
				return nil, err
			}
		}
		if !errors.Is(err, errBlocked) {
			if err != nil {
				return nil, err
			}
			return done, c.after(ctx, name)
		}
		if c.Hooks.Blocked == nil {
			return nil, errLockTime
		}
		if err := c.Hooks.Blocked(name); err != nil {
			return nil, err
		}
		if c.DB.Crashes != crashes {
			return nil, errGone
		}
	}
}

// arrive carries out a statement that nobody waits for. One that would have to wait for a lock is not carried out: it has
// waited for long enough.
func (c *Conn) arrive(name string, handler func(*call) error, args []any) {
	tx := c.DB.Begin()
	tx.at = c.DB.Up()
	if err := handler(&call{db: c.DB, tx: tx, name: name, args: args}); err != nil {
		tx.Rollback()
		return
	}
	_ = tx.Commit() // Nobody hears of it.
}

// Query runs a statement of its own.
func (c *Conn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	done, err := c.run(ctx, nil, sql, args)
	if err != nil {
		return &rows{err: err}, err
	}
	return &rows{data: done.rows}, nil
}

// QueryRow runs a statement of its own.
func (c *Conn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, _ := c.Query(ctx, sql, args...)
	return one{r}
}

// Exec runs a statement of its own.
func (c *Conn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	done, err := c.run(ctx, nil, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return pgconn.NewCommandTag(fmt.Sprintf("UPDATE %d", done.tag)), nil
}

// BeginTx begins a transaction, which the server ends when it idles for too long.
func (c *Conn) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	if err := c.before(ctx, "begin"); err != nil {
		return nil, err
	}
	tx := c.DB.Begin()
	tx.guarded = true
	if err := c.after(ctx, "begin"); err != nil {
		c.lost(tx)
		return nil, err
	}
	return &clientTx{conn: c, tx: tx}, nil
}

func (c *Conn) lost(tx *Tx) {
	if c.Hooks.Lost != nil {
		c.Hooks.Lost(tx)
		return
	}
	tx.Rollback()
}

// clientTx is the client's end of a transaction.
type clientTx struct {
	pgx.Tx // what it does not have panics
	conn   *Conn
	tx     *Tx
	closed bool // for the client
	lost   bool
}

func (t *clientTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	done, err := t.run(ctx, sql, args)
	if err != nil {
		return &rows{err: err}, err
	}
	return &rows{data: done.rows}, nil
}

func (t *clientTx) run(ctx context.Context, sql string, args []any) (*call, error) {
	if t.lost {
		return nil, errGone
	}
	done, err := t.conn.run(ctx, t.tx, sql, args)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) { // the server says so, and has undone everything
		t.lost = true
		t.tx.Rollback()
	}
	if err != nil && !t.lost {
		t.lost = true
		t.conn.lost(t.tx)
	}
	return done, err
}

func (t *clientTx) Commit(ctx context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	if t.lost {
		return errGone
	}
	if err := t.conn.before(ctx, "commit"); err != nil {
		t.conn.lost(t.tx)
		return err
	}
	if err := t.tx.Commit(); err != nil {
		return err
	}
	return t.conn.after(ctx, "commit")
}

func (t *clientTx) Rollback(ctx context.Context) error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	t.closed = true
	if t.lost {
		return nil
	}
	if err := t.conn.before(ctx, "rollback"); err != nil {
		t.conn.lost(t.tx)
		return err
	}
	t.tx.Rollback()
	return nil
}

// SendBatch carries all statements out before the client reads the first answer, as a pipeline does.
func (t *clientTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	r := &results{tx: t, batch: b}
	for _, q := range b.QueuedQueries {
		done, err := t.run(ctx, q.SQL, q.Arguments)
		if err != nil {
			r.err = err
			break
		}
		r.done = append(r.done, done)
	}
	return r
}

type results struct {
	tx    pgx.Tx
	batch *pgx.Batch
	done  []*call
	at    int
	err   error
}

func (r *results) next() (*call, error) {
	if r.at >= len(r.done) {
		if r.err == nil {
			return nil, errors.New("no more results in batch")
		}
		return nil, r.err
	}
	r.at++
	return r.done[r.at-1], nil
}

func (r *results) Exec() (pgconn.CommandTag, error) {
	_, err := r.next()
	return pgconn.CommandTag{}, err
}

func (r *results) Query() (pgx.Rows, error) {
	done, err := r.next()
	if err != nil {
		return &rows{err: err}, err
	}
	return &rows{data: done.rows}, nil
}

func (r *results) QueryRow() pgx.Row {
	got, _ := r.Query()
	return one{got}
}

func (r *results) Tx() pgx.Tx { return r.tx }

func (r *results) Close() error {
	for r.at < len(r.done) {
		if q := r.batch.QueuedQueries[r.at]; q.Fn != nil {
			if err := q.Fn(r); err != nil {
				r.at, r.err = len(r.done), err
			}
			continue
		}
		r.at++
	}
	return r.err
}

type rows struct {
	data [][]any
	at   int
	err  error
}

var textFields = []pgconn.FieldDescription{{Format: pgx.TextFormatCode}}

func (r *rows) Close()                                       { r.at = len(r.data) + 1 }
func (r *rows) Err() error                                   { return r.err }
func (r *rows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r *rows) FieldDescriptions() []pgconn.FieldDescription { return textFields }
func (r *rows) Values() ([]any, error)                       { return r.data[r.at-1], nil }
func (r *rows) RawValues() [][]byte                          { panic("the fake speaks in values") }
func (r *rows) Conn() *pgx.Conn                              { return nil }
func (r *rows) TypeMap() *pgtype.Map                         { return nil }

func (r *rows) Next() bool {
	if r.at < len(r.data) {
		r.at++
		return true
	}
	r.at = len(r.data) + 1
	return false
}

func (r *rows) Scan(to ...any) error {
	from := r.data[r.at-1]
	if len(to) != len(from) {
		return fmt.Errorf("scan %d columns into %d places", len(from), len(to))
	}
	for i := range to {
		if err := assign(to[i], from[i]); err != nil {
			return fmt.Errorf("column %d: %w", i, err)
		}
	}
	return nil
}

func assign(to, from any) error {
	ok := true
	switch to := to.(type) {
	case *int64:
		*to, ok = from.(int64)
	case **int64:
		if *to = nil; from != nil {
			var n int64
			n, ok = from.(int64)
			*to = &n
		}
	case *int:
		var n int64
		n, ok = from.(int64)
		*to = int(n)
	case *string:
		*to, ok = from.(string)
	case **string:
		if *to = nil; from != nil {
			var s string
			s, ok = from.(string)
			*to = &s
		}
	case *bool:
		*to, ok = from.(bool)
	case *[]byte:
		if *to = nil; from != nil {
			*to, ok = from.([]byte)
		}
	case *time.Time:
		*to, ok = from.(time.Time)
	case *pgtype.Timestamptz:
		to.Time, ok = from.(time.Time)
		to.Valid = ok
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("%T does not go into %T", from, to)
	}
	return nil
}

// one is the first row of a result.
type one struct{ rows pgx.Rows }

func (o one) Scan(to ...any) error {
	defer o.rows.Close()
	if err := o.rows.Err(); err != nil {
		return err
	}
	if !o.rows.Next() {
		return pgx.ErrNoRows
	}
	return o.rows.Scan(to...)
}
