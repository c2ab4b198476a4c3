package tenant

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/cutoff"
)

// partBlocks is how much of a table, in blocks of usually 8 KiB, one transaction reads. Of the log it is so much of each segment.
const partBlocks = 128

// begin begins every transaction. If this process freezes inside it, Postgres ends it.
var begin = "begin isolation level read committed; set local idle_in_transaction_session_timeout = '10s'; set local lock_timeout = '5s'; " + cutoff.SetLocal(10*time.Second)

// walk calls do for each part of a table, with the arguments $1 to $6 of its statements. What is written behind it meanwhile it
// does not see.
func (t *Tenants) walk(ctx context.Context, table, name string, do func(args []any) error) error {
	var size int64
	if err := t.pool.QueryRow(ctx, t.sql.In(blocks), t.c.Schema, table).Scan(&size); err != nil {
		return fmt.Errorf("read the size of %s: %w", table, explain(err))
	}
	for _, part := range parts(size) {
		if err := do(append(t.who(name), part.low, part.high)); err != nil {
			return err
		}
	}
	return nil
}

// part is a part of a table, from a row's place up to another's, which is not in it.
type part struct{ low, high string }

// parts are all parts of a table of so many blocks. The last one has no end: the table may have grown.
func parts(blocks int64) (all []part) {
	for from := int64(0); from < blocks; from += partBlocks {
		all = append(all, part{fmt.Sprintf("(%d,0)", from), fmt.Sprintf("(%d,0)", from+partBlocks)})
	}
	if len(all) > 0 {
		all[len(all)-1].high = "(4294967295,0)"
	}
	return all
}

// transact repeats a transaction that Postgres ended for the sake of another one.
func (t *Tenants) transact(ctx context.Context, do func(tx pgx.Tx) error) error {
	const tries = 5
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, t.pool, pgx.TxOptions{BeginQuery: begin}, do)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "40001" || pgErr.Code == "55P03") && try < tries {
			continue
		}
		return err
	}
}
