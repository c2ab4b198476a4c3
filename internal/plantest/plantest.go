// Package plantest lets tests read the plan of a statement: which index finds its rows, and whether a whole table is read.
package plantest

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Plan is EXPLAIN's answer.
type Plan struct {
	t    testing.TB
	name string
	Text string
}

// modes are how Postgres may plan a prepared statement: for its arguments, or once for all. pgx keeps statements, so that
// both happen in production.
var modes = []string{"force_custom_plan", "force_generic_plan"}

// named is the first line of a statement.
var named = regexp.MustCompile(`^-- (\S+)\n`)

// Of explains a statement with literals for its arguments, "0, 'orders', null" or "", in each way that Postgres may plan
// it. Nothing of it is carried out.
func Of(t testing.TB, db *pgxpool.Pool, statement, literals string) (plans []Plan) {
	t.Helper()
	name := "a statement without a name"
	if found := named.FindStringSubmatch(statement); found != nil {
		name = found[1]
	}
	if literals != "" {
		literals = " (" + literals + ")"
	}
	for _, mode := range modes {
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			for _, sql := range []string{"set local plan_cache_mode = " + mode, "set local jit = off", "prepare explained as " + statement} {
				if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
					return err
				}
			}
			defer func() { _, _ = tx.Exec(context.Background(), "deallocate explained") }()
			rows, err := tx.Query(t.Context(), "explain (costs off) execute explained"+literals, pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			plans = append(plans, Plan{t: t, name: name + ", " + mode, Text: strings.Join(lines, "\n")})
			return err
		})
		if err != nil {
			t.Fatalf("explain %s: %v", name, err)
		}
	}
	return plans
}

// Uses wants each index by its name.
func (p Plan) Uses(indexes ...string) {
	p.t.Helper()
	for _, index := range indexes {
		if !regexp.MustCompile(`\b` + index + `\b`).MatchString(p.Text) {
			p.t.Errorf("%s does not use %s:\n%s", p.name, index, p.Text)
		}
	}
}

// NeverReadsAllOf wants no table to be read from end to end.
func (p Plan) NeverReadsAllOf(tables ...string) {
	p.t.Helper()
	for _, table := range tables {
		if regexp.MustCompile(`Seq Scan on (?:\w+\.)?` + table + `\b`).MatchString(p.Text) {
			p.t.Errorf("%s reads all of %s:\n%s", p.name, table, p.Text)
		}
	}
}
