package relay

import (
	"context"
	"errors"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// loopDB is a simdb.Conn for many goroutines, with the two statements that the simulation does without.
type loopDB struct {
	w    *loops
	conn *simdb.Conn
	of   *loopRelay
}

func (d *loopDB) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	if strings.HasPrefix(sql, "-- relay.asked\n") {
		return &noRows{}, nil
	}
	d.w.have(func() { rows, err = d.conn.Query(ctx, sql, args...) })
	return rows, err
}

func (d *loopDB) QueryRow(ctx context.Context, sql string, args ...any) (row pgx.Row) {
	switch {
	case strings.HasPrefix(sql, "-- sqlschema.find\n"):
		return values{true, true}
	case strings.HasPrefix(sql, "-- sqlschema.version\n"):
		return values{sqlschema.Version, sqlschema.Version}
	}
	d.w.have(func() { row = d.conn.QueryRow(ctx, sql, args...) })
	return row
}

func (d *loopDB) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	d.w.have(func() {
		tag, err = d.conn.Exec(ctx, sql, args...)
		if strings.HasPrefix(sql, "-- relay.leave\n") && (errors.Is(err, errCut) || errors.Is(err, context.DeadlineExceeded)) {
			d.of.leaves = true
		}
	})
	return tag, err
}

func (d *loopDB) BeginTx(ctx context.Context, o pgx.TxOptions) (tx pgx.Tx, err error) {
	d.w.have(func() { tx, err = d.conn.BeginTx(ctx, o) })
	if err != nil {
		return nil, err
	}
	return &loopTx{tx, d.w}, nil
}

// loopTx is a transaction of loopDB.
type loopTx struct {
	pgx.Tx
	w *loops
}

func (t *loopTx) Query(ctx context.Context, sql string, args ...any) (rows pgx.Rows, err error) {
	t.w.have(func() { rows, err = t.Tx.Query(ctx, sql, args...) })
	return rows, err
}

func (t *loopTx) SendBatch(ctx context.Context, b *pgx.Batch) (results pgx.BatchResults) {
	t.w.have(func() { results = t.Tx.SendBatch(ctx, b) })
	return results
}

func (t *loopTx) Commit(ctx context.Context) (err error) {
	t.w.have(func() { err = t.Tx.Commit(ctx) })
	return err
}

func (t *loopTx) Rollback(ctx context.Context) (err error) {
	t.w.have(func() { err = t.Tx.Rollback(ctx) })
	return err
}

// noRows is an empty answer.
type noRows struct{ pgx.Rows }

func (*noRows) Next() bool                                   { return false }
func (*noRows) Err() error                                   { return nil }
func (*noRows) Close()                                       {}
func (*noRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (*noRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }

// values is an answer of one row.
type values []any

func (v values) Scan(to ...any) error {
	for i := range to {
		reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(v[i]))
	}
	return nil
}
