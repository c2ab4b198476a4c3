package relay

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// This file keeps Postgres from compiling what reads the log (jit). It compiles statements that it expects to cost much, each time
// anew, and beside a backlog of many millions of events it expects that of every page: a tenth of a second for one that takes
// milliseconds.

// interpretReads is for the transaction that reads.
const interpretReads = `-- relay.interpret
select set_config('jit', 'off', true)`

// interpreted makes each query in one round trip with interpretReads. What others make on the connection keeps their settings.
type interpreted struct{ *pgxpool.Pool }

func (p interpreted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	b := &pgx.Batch{}
	b.Queue(interpretReads)
	b.Queue(sql, args...)
	results := p.SendBatch(ctx, b)
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
	return &interpretedRows{Rows: rows, results: results}, nil
}

// interpretedRows are the rows of such a query. Their connection is in use until they are closed.
type interpretedRows struct {
	pgx.Rows
	results pgx.BatchResults
	err     error // of the end of the transaction
}

func (r *interpretedRows) Close() {
	r.Rows.Close()
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
}

// Next closes after the last row, as a pgx.Rows does.
func (r *interpretedRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *interpretedRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}
