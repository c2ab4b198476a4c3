package plain_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestPlain_BytesAreReadInBothFormsOfPostgres(t *testing.T) {
	t.Parallel()
	var all []byte
	for b := range 256 {
		all = append(all, byte(b))
	}
	db := pgtest.New(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for _, form := range []string{"hex", "escape"} {
			pool := db.PoolWith(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["bytea_output"], c.ConnConfig.DefaultQueryExecMode = form, mode
			})
			for _, want := range [][]byte{nil, {}, all, []byte(`\x00`), []byte(`\\x41`), []byte(`\101`), []byte(`\`)} {
				got := []byte("before")
				if err := pool.QueryRow(t.Context(), "select $1::bytea", want).Scan((*plain.Bytes)(&got)); err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
					t.Errorf("%v, %s: %q is read as %q: %v", mode, form, want, got, err)
				}
			}
		}
	}
	for _, malformed := range []string{`\1`, `\x1`, `\9aa`, `\777`} {
		var b plain.Bytes
		if err := b.ScanText(pgtype.Text{String: malformed, Valid: true}); err == nil {
			t.Errorf("%s is read as %q", malformed, b)
		}
	}
}

// The wrapped pool behaves as its pool does, and nothing of its settings stays on a connection.
func TestPlain_APoolOfPlainTextsIsLikeItsPool(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			raw := db.PoolWith(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["datestyle"], c.ConnConfig.DefaultQueryExecMode, c.MaxConns = "German", mode, 1
			})
			pool, ctx := plain.Of(raw), t.Context()
			var n int
			if err := pool.QueryRow(ctx, "select 1 where false").Scan(&n); err != pgx.ErrNoRows {
				t.Errorf("no row: %v", err)
			}
			if err := pool.QueryRow(ctx, "select 1 / $1::int", 0).Scan(&n); err == nil {
				t.Error("no error of a row")
			}
			rows, _ := pool.Query(ctx, "select g from generate_series(1, 3) g")
			if got, err := pgx.CollectRows(rows, pgx.RowTo[int]); err != nil || len(got) != 3 {
				t.Errorf("rows %v: %v", got, err)
			}
			rows, err := pool.Query(ctx, "select no_column")
			if err == nil {
				_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			}
			if err == nil {
				t.Error("no error of a query")
			}
			b := &pgx.Batch{}
			b.Queue("select 1").QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
			b.Queue("select now()")
			if err := pool.SendBatch(ctx, b).Close(); err != nil || n != 1 {
				t.Errorf("the batch read %d: %v", n, err)
			}
			b = &pgx.Batch{}
			b.Queue("select 1 / 0")
			if err := pool.SendBatch(ctx, b).Close(); err == nil {
				t.Error("no error of a batch")
			}
			gone, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := pool.Begin(gone); err == nil {
				t.Error("no error of a context that is over")
			}
			if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1"); return err }); err != nil {
				t.Error(err)
			}
			var style string
			if err := raw.QueryRow(ctx, "show datestyle").Scan(&style); err != nil || style != "German, DMY" {
				t.Errorf("the date style is %q afterwards: %v", style, err)
			}
			if used := raw.Stat().AcquiredConns(); used != 0 {
				t.Errorf("%d connections are in use", used)
			}
		})
	}
}
