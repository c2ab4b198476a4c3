// Package plain keeps settings of a role or a database from changing the texts in which Postgres gives values and takes them.
//
// pgx gets and sends values as texts in its modes exec and simple_protocol, and reads one form of each: a time in the ISO form, bytes in
// hexadecimal. Statements of ours set what they need until their transaction ends. Transactions of users are left as they are.
package plain

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Settings is for the transaction of a statement of ours, before it: date style and bytes for what is read, nulls of arrays for
// what is sent.
const Settings = `-- plain.settings
select ` + Forms

// Forms is what Settings selects, for a statement that sets more.
const Forms = `set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true), set_config('array_nulls', 'on', true)`

// Nulls is for a statement with arrays that may have nulls, before it in a transaction in which nothing of users follows.
const Nulls = `-- plain.nulls
select set_config('array_nulls', 'on', true)`

// Pool is a pool on whose single statements and transactions Settings are in force where they matter. What is made on a connection
// of Acquire has the settings of the session. It may be used by many goroutines at once, as its pool.
type Pool struct {
	*pgxpool.Pool
	texts bool // pgx's mode is one of texts
}

// Of returns a Pool of pool, which may be nil.
func Of(pool *pgxpool.Pool) Pool {
	if pool == nil {
		return Pool{}
	}
	return Pool{Pool: pool, texts: Texts(pool.Config().ConnConfig)}
}

// Texts says whether values are texts on connections of this configuration.
func Texts(c *pgx.ConnConfig) bool {
	return c.DefaultQueryExecMode == pgx.QueryExecModeExec || c.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol
}

// Query makes a query in one round trip with Settings.
func (p Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !p.texts {
		return p.Pool.Query(ctx, sql, args...)
	}
	return After(ctx, p.Pool, Settings, sql, args...)
}

// QueryRow is Query for one row.
func (p Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if !p.texts {
		return p.Pool.QueryRow(ctx, sql, args...)
	}
	rows, err := p.Query(ctx, sql, args...)
	return row{rows, err}
}

// SendBatch sends a batch with Settings before its statements.
func (p Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !p.texts {
		return p.Pool.SendBatch(ctx, b)
	}
	whole := &pgx.Batch{}
	whole.Queue(Settings)
	whole.QueuedQueries = append(whole.QueuedQueries, b.QueuedQueries...)
	results := p.Pool.SendBatch(ctx, whole)
	_, _ = results.Exec() // An error is that of the next statement, too.
	return results
}

// Begin begins a transaction with Settings.
func (p Pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction with Settings.
func (p Pool) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := p.Pool.BeginTx(ctx, o)
	if err != nil || !p.texts {
		return tx, err
	}
	if _, err := tx.Exec(ctx, Settings); err != nil {
		_ = tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// After makes a query in one round trip and one transaction with a statement that sets what it needs. What others make on the
// connection keeps their settings.
func After(ctx context.Context, pool *pgxpool.Pool, settings, sql string, args ...any) (pgx.Rows, error) {
	b := &pgx.Batch{}
	b.Queue(settings)
	b.Queue(sql, args...)
	results := pool.SendBatch(ctx, b)
	_, err := results.Exec()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close()
		return nil, err
	}
	return &batchRows{Rows: rows, results: results}, nil
}

// batchRows are the rows of such a query. Their connection is in use until they are closed.
type batchRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error // of the end of the transaction
}

func (r *batchRows) Close() {
	r.Rows.Close()
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
}

// Next closes after the last row, as a pgx.Rows does.
func (r *batchRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan closes after an error, as a pgx.Rows does.
func (r *batchRows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *batchRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// row is the first of some rows.
type row struct {
	rows pgx.Rows
	err  error
}

func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// known is for values that are right.
const known = `-- plain.known
select '2000-02-29 12:34:56.789+00'::timestamptz, decode('00ff5c78', 'hex')`

// Reads says whether db reads a moment and bytes that are right. If it does not, the settings of the session or the types of the
// pool are the reason why pgx cannot read a row, and no row is.
func Reads(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) bool {
	var at pgtype.Timestamptz
	var content []byte
	err := db.QueryRow(ctx, known).Scan(&at, &content)
	return err == nil && at.Time.Equal(time.Date(2000, 2, 29, 12, 34, 56, 789e6, time.UTC)) && string(content) == "\x00\xff\\x"
}

// Bytes reads a bytea in every form: as bytes, or as a text in either form of bytea_output. It is for what is read in a transaction
// of users.
type Bytes []byte

// ScanBytes takes what pgx got as bytes.
func (b *Bytes) ScanBytes(v []byte) error {
	*b = bytes.Clone(v)
	return nil
}

// ScanText takes what pgx got as a text. A backslash of the form escape is doubled or before three digits, so it is never before an x.
func (b *Bytes) ScanText(v pgtype.Text) error {
	*b = nil
	if !v.Valid {
		return nil
	}
	if digits, ok := strings.CutPrefix(v.String, `\x`); ok {
		read, err := hex.DecodeString(digits)
		*b = read
		return err
	}
	read := make([]byte, 0, len(v.String))
	for i := 0; i < len(v.String); i++ {
		c := v.String[i]
		if c == '\\' {
			if rest := v.String[i+1:]; strings.HasPrefix(rest, `\`) {
				i++
			} else if len(rest) < 3 {
				return fmt.Errorf("bytes end with %q", v.String[i:])
			} else {
				n, err := strconv.ParseUint(rest[:3], 8, 8)
				if err != nil {
					return fmt.Errorf("bytes have %q: %w", v.String[i:i+4], err)
				}
				c, i = byte(n), i+3
			}
		}
		read = append(read, c)
	}
	*b = read
	return nil
}

// Micros reads a moment from its microseconds since 1970, for which no setting matters. Null is the zero time.
type Micros time.Time

// ScanInt64 takes what pgx got.
func (m *Micros) ScanInt64(v pgtype.Int8) error {
	*m = Micros{}
	if v.Valid {
		*m = Micros(time.UnixMicro(v.Int64))
	}
	return nil
}
