// Package effect says what a statement does: what it returns, and which rows it changes.
package effect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Undone calls do in a transaction, and rolls it back.
func Undone(t testing.TB, db *pgtest.DB, do func(tx pgx.Tx)) {
	t.Helper()
	UndoneAs(t, db, pgx.TxOptions{}, do)
}

// UndoneAs is Undone in a transaction with options.
func UndoneAs(t testing.TB, db *pgtest.DB, options pgx.TxOptions, do func(tx pgx.Tx)) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), options)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	do(tx)
}

// Returned runs a statement and says what it returns: the values of a row with spaces between them, the rows with commas. An error fails the
// test.
func Returned(t testing.TB, tx pgx.Tx, sql string, args ...any) string {
	t.Helper()
	answer, err := tx.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pgx.CollectRows(answer, func(row pgx.CollectableRow) (string, error) {
		values, err := row.Values()
		texts := make([]string, len(values))
		for i, v := range values {
			if b, ok := v.([]byte); ok {
				v = string(b)
			}
			texts[i] = fmt.Sprint(v)
		}
		return strings.Join(texts, " "), err
	})
	if err != nil {
		t.Fatalf("%.40s: %v", sql, err)
	}
	return strings.Join(rows, ", ")
}

// Changed calls do and returns the names of the rows that it changed, with + before those that are new and - before those that are
// gone, in their order. named is a query of the rows, each with its name first.
func Changed(t testing.TB, tx pgx.Tx, named string, do func()) []string {
	t.Helper()
	was := State(t, tx, named)
	do()
	now := State(t, tx, named)
	var changed []string
	for name, row := range was {
		switch is, there := now[name]; {
		case !there:
			changed = append(changed, "-"+name)
		case is != row:
			changed = append(changed, name)
		}
	}
	for name := range now {
		if _, there := was[name]; !there {
			changed = append(changed, "+"+name)
		}
	}
	slices.SortFunc(changed, func(a, b string) int { return strings.Compare(strings.TrimLeft(a, "+-"), strings.TrimLeft(b, "+-")) })
	return changed
}

// State are the rows of such a query, by their names.
func State(t testing.TB, tx pgx.Tx, named string) map[string]string {
	t.Helper()
	answer, err := tx.Query(t.Context(), named)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	var name, row string
	if _, err := pgx.ForEachRow(answer, []any{&name, &row}, func() error {
		if _, twice := rows[name]; twice {
			t.Fatalf("two rows have the name %q", name)
		}
		rows[name] = row
		return nil
	}); err != nil {
		t.Fatalf("%.40s: %v", named, err)
	}
	return rows
}

// Blocked runs a statement, and returns as soon as it waits for a lock, or has ended. done returns how many rows it has changed.
func Blocked(t testing.TB, db *pgtest.DB, sql string, args ...any) (done func() int64) {
	t.Helper()
	ended := make(chan int64, 1)
	go func() {
		tag, err := db.Exec(t.Context(), sql, args...)
		if err != nil {
			t.Error(err)
		}
		ended <- tag.RowsAffected()
	}()
	name, _, _ := strings.Cut(sql, "\n")
	wait.Until(t, name+" waits for a lock", func() bool {
		return len(ended) > 0 || pgtest.Count(t, db.Pool, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like $1", name+"%") == 1
	})
	return func() int64 { return <-ended }
}
