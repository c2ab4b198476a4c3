// Package plantest lets tests read the plan of a statement: which index finds its rows, and whether a whole table is read.
package plantest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
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
	return of(t, db, statement, literals, modes)
}

// Custom explains a statement as Of, in a transaction in which it is planned for its arguments only.
func Custom(t testing.TB, db *pgxpool.Pool, statement, literals string) (plans []Plan) {
	t.Helper()
	return of(t, db, statement, literals, modes[:1])
}

func of(t testing.TB, db *pgxpool.Pool, statement, literals string, modes []string) (plans []Plan) {
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
			plans = append(plans, Plan{
				t:    t,
				name: name + ", " + mode,
				Text: strings.Join(lines, "\n"),
			})
			return err
		})
		if err != nil {
			t.Fatalf("explain %s: %v", name, err)
		}
	}
	return plans
}

// Allowed wants a role to have every right that a statement needs. Nothing of it is carried out.
func Allowed(t testing.TB, db *pgxpool.Pool, role, statement, literals string) {
	t.Helper()
	if literals != "" {
		literals = " (" + literals + ")"
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		defer func() { _, _ = tx.Exec(context.Background(), "deallocate allowed") }()
		for _, sql := range []string{"set local role " + role, "prepare allowed as " + statement, "explain execute allowed" + literals} {
			if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("%s may not run %s: %v", role, statement, err)
	}
}

// Uses wants each index by its name, to find rows by: with a condition on it, or as the arbiter of a conflict.
func (p Plan) Uses(indexes ...string) {
	p.t.Helper()
	for _, index := range indexes {
		if !finds(p.Text, index) {
			p.t.Errorf("%s does not find rows by %s:\n%s", p.name, index, p.Text)
		}
	}
}

// node is the line of a plan on which a step begins.
var node = regexp.MustCompile(`^\s*(->|\w+ on|CTE |InitPlan|SubPlan)`)

// finds says whether a step of a plan finds rows by an index.
func finds(plan, index string) bool {
	named := regexp.MustCompile(`\b` + index + `\b`)
	scans := false // within a step that scans the index
	for line := range strings.Lines(plan) {
		switch {
		case strings.Contains(line, "Conflict Arbiter Indexes:") && named.MatchString(line):
			return true
		case strings.Contains(line, "Scan"):
			scans = named.MatchString(line)
		case node.MatchString(line):
			scans = false
		case scans && strings.Contains(line, "Index Cond:"):
			return true
		}
	}
	return false
}

// begins is where a statement begins in a file of Go.
var begins = regexp.MustCompile("`-- (\\S+)\n")

// EveryStatement wants a plan, or a reason why not, of each statement that is written in the files of the test's own package.
// asked are statements, excused the names of others.
func EveryStatement(t testing.TB, asked []string, excused map[string]string) {
	t.Helper()
	reasons := maps.Clone(excused)
	for _, statement := range asked {
		if found := named.FindStringSubmatch(statement); found != nil {
			reasons[found[1]] = "asked"
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range begins.FindAllStringSubmatch(string(text), -1) {
			seen++
			if reasons[found[1]] == "" {
				t.Errorf("%s of %s has no plan that is looked at, and no reason why not", found[1], name)
			}
			delete(excused, found[1])
		}
	}
	if seen == 0 {
		t.Error("no statement was found in the package's files")
	}
	for name := range excused {
		t.Errorf("%s is excused, and there is no such statement", name)
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
