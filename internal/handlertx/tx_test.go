package handlertx_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/handlertx"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A statement is refused, or found out after it was sent, or neither.
func TestTx_AHandlerThatEndsItsTransactionIsRefusedOrFoundOut(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	refusal := errors.New("no")
	const fine, refused, foundOut = 0, 1, 2
	for sql, want := range map[string]int{
		"select 1":                    fine,
		"savepoint a":                 fine,
		"rollback to savepoint s":     fine,
		"ROLLBACK TO s":               fine,
		"rollback work to s":          fine,
		"release savepoint s":         fine,
		"begin":                       fine, // Postgres only warns.
		"do $$ begin null; end $$":    fine,
		"set local work_mem = '8MB'":  fine,
		"select 'commit'; select 'b'": fine,
		"prepare transaction_1 as select 1; deallocate transaction_1": fine,
		"select 1 as committed":               fine,
		"commit":                              refused,
		" ;\n COMMIT;":                        refused,
		"commit work":                         refused,
		"rollback":                            refused,
		"rollback transaction":                refused,
		"end":                                 refused,
		"abort":                               refused,
		"commit and chain":                    refused,
		"ROLLBACK AND CHAIN":                  refused,
		"rollback; begin":                     refused,
		"commit; start transaction":           refused,
		"prepare transaction 'handlers'":      refused,
		"select 1; commit":                    foundOut,
		"/* now */ commit":                    refused,
		"-- now\nrollback and chain":          refused,
		"/* now */ commit; start transaction": refused,
		"/* a /* b */ c */ commit":            refused,
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
				given := handlertx.Give(t.Context(), tx, refusal)
				if !given.Sent().IsZero() {
					t.Error("it sent something before it began")
				}
				err = run(t.Context(), given)
				if got := given.Ended(); got != (want != fine) {
					t.Errorf("%s: ended is %v", how, got)
				}
				if errors.Is(err, refusal) != (want == refused) || err != nil && want != refused {
					t.Errorf("%s: %v", how, err)
				}
				if open := tx.Conn().PgConn().TxStatus() == 'T'; want == refused && !open {
					t.Errorf("%s: it was sent", how)
				}
				if given.Sent().IsZero() && want != refused {
					t.Error("it sent nothing")
				}
				_ = tx.Rollback(t.Context())
			}
		})
	}
}

func TestTx_WhatEndsTheTransactionIsRefusedHoweverItIsSent(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	refusal := errors.New("no")
	var one int
	for name, send := range map[string]func(ctx context.Context, tx pgx.Tx, sql string) error{
		"batch": func(ctx context.Context, tx pgx.Tx, sql string) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue(sql)
			return tx.SendBatch(ctx, b).Close()
		},
		"query": func(ctx context.Context, tx pgx.Tx, sql string) error {
			rows, err := tx.Query(ctx, sql)
			rows.Close()
			return errors.Join(err, rows.Err())
		},
		"row": func(ctx context.Context, tx pgx.Tx, sql string) error { return tx.QueryRow(ctx, sql).Scan(&one) },
	} {
		for sql, want := range map[string]bool{"select 1": false, " COMMIT and chain": true} {
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			given := handlertx.Give(t.Context(), tx, refusal)
			if err := send(t.Context(), given, sql); errors.Is(err, refusal) != want || err != nil && !want {
				t.Errorf("%s of %q: %v", name, sql, err)
			}
			if given.Ended() != want || tx.Conn().PgConn().TxStatus() != 'T' {
				t.Errorf("%s of %q: ended is %v, and the transaction is %c", name, sql, given.Ended(), tx.Conn().PgConn().TxStatus())
			}
			_ = tx.Rollback(t.Context())
		}
	}
}

// What needs a transaction of its own is found out in one, and refused where others share it: nothing is sent.
func TestTx_WhatNeedsATransactionOfItsOwnIsRefusedInASharedOne(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	for sql, want := range map[string]bool{
		"select 1": false, "insert into t values ('set')": false, "update t set a = 1": false, "savepoint settings": false, "select 1;": false,
		"-- name: Get :one\nselect 1 -- end": false, "select 1; -- all": false, "select 1; /* all */ ;": false,
		"set local role pg_monitor": true, " ; SET search_path = a": true, "reset all": true, "-- a\nset role a": true, "/* a /* b */ */ set role a": true,
		"select set_config('app.tenant', 'a', true)": true, "select SET_CONFIG('app.tenant', 'a', true)": true,
		"select 1; commit": true, "select 1; -- now\n commit": true, "select 1 /* a; */; select 2": true,
	} {
		for how, run := range map[string]func(tx pgx.Tx) error{
			"Exec":     func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), sql); return err },
			"Query":    func(tx pgx.Tx) error { _, err := tx.Query(t.Context(), sql); return err },
			"QueryRow": func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), sql).Scan() },
			"Prepare":  func(tx pgx.Tx) error { _, err := tx.Prepare(t.Context(), "", sql); return err },
			"SendBatch": func(tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue("select 1")
				b.Queue(sql)
				return tx.SendBatch(t.Context(), b).Close()
			},
			"a savepoint": func(tx pgx.Tx) error {
				nested, err := tx.Begin(t.Context())
				if err != nil {
					return err
				}
				_, err = nested.Exec(t.Context(), sql)
				return err
			},
		} {
			for _, shared := range []bool{false, true} {
				tx, err := db.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				given, refusal := handlertx.Give(t.Context(), tx, errors.New("no")), errors.New("not here")
				if shared {
					given.Share(refusal)
				}
				err = run(given)
				if got := given.NeedsItsOwn(); got != want {
					t.Errorf("%s by %s: %v, want %v", sql, how, got, want)
				}
				if got := errors.Is(err, refusal); got != (want && shared) {
					t.Errorf("%s by %s, shared %v: refused %v", sql, how, shared, got)
				}
				_ = tx.Rollback(t.Context())
			}
		}
	}
}

// On the connection itself nothing is refused, so a handler that shares its transaction does not get it.
func TestTx_TheConnectionOfASharedTransactionIsNotGiven(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	given, refusal := handlertx.Give(t.Context(), tx, errors.New("no")), errors.New("not here")
	if given.Conn() != tx.Conn() || !given.NeedsItsOwn() {
		t.Error("a handler with a transaction of its own does not get its connection, or nobody knows that it did")
	}
	given = handlertx.Give(t.Context(), tx, errors.New("no"))
	given.Share(refusal)
	defer func() {
		if p := recover(); p != refusal || !given.NeedsItsOwn() {
			t.Errorf("it panicked with %v", p)
		}
	}()
	t.Errorf("it got %v", given.Conn())
}

func TestTx_WhatGoesBeforeAHandlerGoesOnceBeforeItsFirstStatement(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	for how, use := range map[string]func(tx pgx.Tx) error{
		"Exec":     func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "select 1"); return err },
		"Query":    func(tx pgx.Tx) error { rows, err := tx.Query(t.Context(), "select 1"); rows.Close(); return err },
		"QueryRow": func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), "select 1").Scan(nil) },
		"Prepare":  func(tx pgx.Tx) error { _, err := tx.Prepare(t.Context(), "", "select 1"); return err },
		"SendBatch": func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			return tx.SendBatch(t.Context(), b).Close()
		},
		"CopyFrom": func(tx pgx.Tx) error {
			_, err := tx.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"n"}, pgx.CopyFromRows(nil))
			return err
		},
		"a savepoint": func(tx pgx.Tx) error {
			nested, err := tx.Begin(t.Context())
			if err != nil {
				return err
			}
			_, err = nested.Exec(t.Context(), "select 1")
			return err
		},
		"a large object": func(tx pgx.Tx) error {
			large := tx.LargeObjects()
			_, err := large.Create(t.Context(), 0)
			return err
		},
	} {
		for _, fails := range []error{nil, errors.New("not ready")} {
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, tx, "create table copied (n int)")
			given, calls := handlertx.Give(t.Context(), tx, errors.New("no")), 0
			given.Before(func() error {
				calls++
				if !given.Sent().IsZero() {
					t.Errorf("%s: something was sent before", how)
				}
				return fails
			})
			if calls != 0 {
				t.Errorf("%s: it was called before the handler sent anything", how)
			}
			for range 2 {
				switch err := use(given); {
				case fails == nil && err != nil:
					t.Errorf("%s: %v", how, err)
				case fails != nil && !errors.Is(err, pgx.ErrTxClosed):
					t.Errorf("%s, although what goes before it failed: %v", how, err)
				}
			}
			if calls != 1 || given.Unready() != fails {
				t.Errorf("%s: called %d times, and its error is %v", how, calls, given.Unready())
			}
			_ = tx.Rollback(t.Context())
		}
	}
}
