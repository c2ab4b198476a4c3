package handlertx_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestAHandlerThatEndsItsTransactionIsFoundOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for sql, want := range map[string]bool{
		"select 1":                    false,
		"savepoint a":                 false,
		"rollback to savepoint s":     false,
		"ROLLBACK TO s":               false,
		"release savepoint s":         false,
		"begin":                       false, // Postgres only warns.
		"do $$ begin null; end $$":    false,
		"set local work_mem = '8MB'":  false,
		"commit":                      true,
		"rollback":                    true,
		"end":                         true,
		"abort":                       true,
		"commit and chain":            true,
		"ROLLBACK AND CHAIN":          true,
		"rollback; begin":             true,
		"commit; start transaction":   true,
		"select 'commit'; select 'b'": false,
	} {
		t.Run(sql, func(t *testing.T) {
			for how, run := range map[string]func(ctx context.Context, tx pgx.Tx) error{
				"Exec": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err },
				"under a savepoint": func(ctx context.Context, tx pgx.Tx) error {
					nested, err := tx.Begin(ctx)
					if err != nil {
						return err
					}
					_, err = nested.Exec(ctx, sql)
					return err
				},
			} {
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				pgtest.Exec(t, tx, "savepoint s")
				given := handlertx.Give(t.Context(), tx, errors.New("no"))
				if !given.Sent().IsZero() {
					t.Error("it sent something before it began")
				}
				_ = run(t.Context(), given)
				if got := given.Ended(); got != want {
					t.Errorf("%s: ended is %v, want %v", how, got, want)
				}
				if given.Sent().IsZero() {
					t.Error("it sent nothing")
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
}

func TestABatchThatCommitsIsFoundOut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for sql, want := range map[string]bool{"select 1": false, "commit": true, " COMMIT and chain": true} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		given := handlertx.Give(t.Context(), tx, errors.New("no"))
		b := &pgx.Batch{}
		b.Queue(sql)
		_ = given.SendBatch(t.Context(), b).Close()
		if got := given.Ended(); got != want {
			t.Errorf("%q: ended is %v, want %v", sql, got, want)
		}
		_ = tx.Rollback(t.Context())
	}
}
