package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/contrib/sql/sqltx"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// expressions have values of every type that database/sql knows, and of others.
var expressions = []string{
	"true", "false", "null::bool", "1::int2", "-2::int4", "9223372036854775807::int8", "1.5::float4", "0.1::float8", "'NaN'::float8", "12.340::numeric",
	"'text'::text", "''::text", "'x'::varchar", "'y'::char(3)", `'\x00ff'::bytea`, `''::bytea`, "null::bytea", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid",
	`'{"a": [1, null]}'::json`, `'{"a": 1}'::jsonb`, "null::jsonb", "'<a/>'::xml", "date '2026-02-03'", "date 'infinity'", "timestamp '2026-02-03 04:05:06.789'",
	"timestamptz '2026-02-03 04:05:06.789+02'", "timestamptz '-infinity'", "time '04:05'", "interval '1 day 2 hours'", "array[1, 2]", `array['a"b', null]`,
	"'pg_class'::regclass::oid", "'1'::xid", "inet '10.0.0.1/8'", "'mood'::mood", "row(1, 'a')", "point(1, 2)", "int4range(1, 5)",
}

func TestLend_ValuesAreThoseOfPgxsOwnDriver(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "create type mood as enum ('mood')")
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		pool := db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
		own := stdlib.OpenDBFromPool(pool)
		defer own.Close()
		read := func(tx *sql.Tx) (all []string) {
			rows, err := tx.QueryContext(t.Context(), "select "+strings.Join(expressions, ", ")+" from generate_series(1, 2)")
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			columns, err := rows.ColumnTypes()
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				values, into := make([]any, len(expressions)), make([]any, len(expressions))
				for i := range values {
					into[i] = &values[i]
				}
				if err := rows.Scan(into...); err != nil {
					t.Fatal(err)
				}
				for i, v := range values {
					all = append(all, fmt.Sprintf("%s %s %s: %T %#v", expressions[i], columns[i].Name(), columns[i].DatabaseTypeName(), v, v))
				}
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return all
		}
		tx, err := own.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		want := read(tx)
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return sqltx.Lend(t.Context(), tx, func(tx *sql.Tx) error { got = read(tx); return nil })
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) != 2*len(expressions) {
			t.Errorf("%s (-pgx/stdlib +sqltx):\n%s", mode, diff)
		}
	}
}

func TestLend_ArgumentsAndResultsGoThrough(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	err := b.lend(func(tx *sql.Tx) error {
		var (
			text  string
			n     sql.NullInt64
			bytes []byte
			when  time.Time
		)
		if err := tx.QueryRow("select $1::text, $2::int8, $3::bytea, $4::timestamptz, $5::text[]", "a", nil, []byte{0, 1}, at, []string{"b", `c"`}).
			Scan(&text, &n, &bytes, &when, new(any)); err != nil {
			return err
		}
		if text != "a" || n.Valid || string(bytes) != "\x00\x01" || !when.Equal(at) {
			t.Errorf("got %q, %v, %v, %v", text, n, bytes, when)
		}
		result, err := tx.Exec("insert into effect select 'r' || i from generate_series(1, 3) i")
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); rows != 3 || err != nil {
			t.Errorf("%d rows, %v", rows, err)
		}
		prepared, err := tx.Prepare("select count(*) from effect where id like $1")
		if err != nil {
			return err
		}
		for like, want := range map[string]int{"r%": 3, "x%": 0} {
			var got int
			if err := prepared.QueryRow(like).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %d, %v", like, got, err)
			}
		}
		if err := tx.QueryRow("select 1 where false").Scan(new(int)); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("without a row: %v", err)
		}
		if _, err := tx.Exec("select $1", sql.Named("name", 1)); err == nil || !strings.Contains(err.Error(), "named") {
			t.Errorf("a named argument: %v", err)
		}
		rows, err := tx.Query("select n, 1 / (3 - n) from generate_series(1, 5) n")
		if err != nil {
			return err
		}
		for rows.Next() {
		}
		if err := rows.Err(); err == nil || !strings.Contains(err.Error(), "division by zero") {
			t.Errorf("an error after some rows: %v", err)
		}
		return errors.New("planned")
	})
	if err == nil || err.Error() != "planned" {
		t.Errorf("got %v", err)
	}
	if n := pgtest.Count(t, b.pool, "select count(*) from effect"); n != 0 {
		t.Errorf("%d effects after a rollback", n)
	}
}

func TestLend_WhatTheFunctionLeftOpenIsClosed(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	var kept *sql.Tx
	err := b.lend(func(tx *sql.Tx) error {
		kept = tx
		if err := insert(b.Context(), tx, "e"); err != nil {
			return err
		}
		if _, err := tx.Prepare("select 1"); err != nil {
			return err
		}
		rows, err := tx.Query("select generate_series(1, 10000)")
		if err != nil {
			return err
		}
		rows.Next()
		return nil
	})
	if err != nil || b.effects("e") != 1 {
		t.Errorf("got %v and %d effects", err, b.effects("e"))
	}
	if _, err := kept.Exec("insert into effect values ('late')"); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("used after its return: %v", err)
	}
	if err := kept.Commit(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("committed after its return: %v", err)
	}
	if n := b.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestLend_TheLenderEndsTheTransaction(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	for name, f := range map[string]func(tx *sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		var open bool
		err := b.lend(func(tx *sql.Tx) error {
			if err := insert(b.Context(), tx, name); err != nil {
				return err
			}
			err := f(tx)
			_, after := tx.Exec("select 1")
			open = !errors.Is(after, sql.ErrTxDone)
			if !errors.Is(err, sqltx.ErrLent) {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		})
		if !errors.Is(err, sqltx.ErrLent) || open || b.effects(name) != 0 {
			t.Errorf("%s: got %v, of use after it: %t, %d effects", name, err, open, b.effects(name))
		}
	}
	if err := sqltx.Lend(b.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "tx is nil") {
		t.Errorf("without a transaction: %v", err)
	}
}

// The context of Lend bounds statements, not the loan: what the function does without the database goes on.
func TestLend_AContextThatEndsFailsStatementsNotTheLoan(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	ctx, cancel := context.WithCancel(b.Context())
	err := pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error {
		return sqltx.Lend(ctx, tx, func(tx *sql.Tx) error {
			if err := insert(b.Context(), tx, "before"); err != nil {
				return err
			}
			cancel()
			for range 100 { // not one of them is sent
				if err := insert(b.Context(), tx, "after"); !errors.Is(err, context.Canceled) {
					t.Fatalf("a statement under a context of its own: %v", err)
				}
			}
			return nil
		})
	})
	// The lender ends the transaction: to it, nothing has failed.
	if err != nil || b.effects("before") != 1 || b.effects("after") != 0 {
		t.Errorf("the lender's commit: %v, with %d and %d effects", err, b.effects("before"), b.effects("after"))
	}
}

func TestLend_ALoanLeavesNothingRunning(t *testing.T) {
	skip.InShort(t, "it counts what the whole process does meanwhile")
	b := setup(t)
	before := runtime.NumGoroutine()
	for range 200 {
		if err := b.lend(func(tx *sql.Tx) error { return tx.QueryRow("select 1").Scan(new(int)) }); err != nil {
			t.Fatal(err)
		}
	}
	// Other tests of the package run beside this one, and have some.
	wait.Until(t, "goroutines of 200 loans to end", func() bool { return runtime.NumGoroutine() < before+100 })
}

func BenchmarkLend(b *testing.B) {
	db := migrated.New(b)
	tx, err := db.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	b.Run("pgx", func(b *testing.B) {
		for b.Loop() {
			if _, err := tx.Exec(b.Context(), "select 1"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lent", func(b *testing.B) {
		for b.Loop() {
			if err := sqltx.Lend(b.Context(), tx, func(tx *sql.Tx) error { _, err := tx.Exec("select 1"); return err }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
