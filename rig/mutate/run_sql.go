package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// sqlSwitch is added to package sqlschema, through which every statement goes. A variable of the environment names a file with a statement
// and what stands in its place.
const sqlSwitch = `package sqlschema

import (
	"encoding/json"
	"os"
	"strings"
)

var mutant = func() (m struct{ Was, Is string }) {
	path := os.Getenv("HOLDFAST_SQL_MUTANT")
	if path == "" {
		return m
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		panic(err)
	}
	return m
}()

func mutated(statement string) string {
	if mutant.Was == "" || !strings.Contains(statement, mutant.Was) {
		return statement
	}
	if err := os.WriteFile(os.Getenv("HOLDFAST_SQL_MUTANT")+".reached", nil, 0o600); err != nil {
		panic(err)
	}
	return strings.Replace(statement, mutant.Was, mutant.Is, 1)
}
`

// sqlDoor is where every statement passes.
const sqlDoor = "func In(name, statement string) string {\n"

// sqlTests are the tests of a package, in a binary whose statements can be changed.
type sqlTests struct {
	dir, binary string
	took        time.Duration
}

// trySQL runs all quick tests of a target against its mutants. Nobody knows which of them reach a statement.
func trySQL(ctx context.Context, o options, out io.Writer, t target, all []*mutant, eq declared) error {
	if len(all) == 0 {
		return nil
	}
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	const door = "internal/sqlschema/sqlschema.go"
	text, err := os.ReadFile(door)
	if err != nil {
		return err
	}
	if !strings.Contains(string(text), sqlDoor) {
		return fmt.Errorf("%s has no %q: correct run_sql.go", door, sqlDoor)
	}
	over := map[string]string{
		door:                                  strings.Replace(string(text), sqlDoor, sqlDoor+"\tstatement = mutated(statement)\n", 1),
		"internal/sqlschema/mutant_switch.go": sqlSwitch,
	}
	var packages []sqlTests
	for i, dir := range append([]string{t.dir}, t.also...) {
		binary, said, err := (&pkg{dir: dir}).build(ctx, scratch, fmt.Sprint("sql", i), over)
		if err != nil {
			return fmt.Errorf("build the tests of %s: %w\n%s", dir, err, said)
		}
		began := time.Now()
		if failed, _, err := runMatching(ctx, target{dir: dir, flags: t.flags}, binary, cmp.Or(t.tests, "."), 10*time.Minute, "HOLDFAST_SQL_MUTANT="); err != nil {
			return fmt.Errorf("%s: %s fails without a mutant: %w", dir, failed, err)
		}
		packages = append(packages, sqlTests{dir, binary, time.Since(began)})
	}
	fmt.Fprintf(out, "%s: %d mutants of statements\n", t.dir, len(all))
	for i, m := range all {
		m.id = i + 1
	}
	return each(ctx, o, t, all, func(m *mutant) (state, string) {
		if m.reason = eq[m.name]; m.reason != "" {
			return equivalent, ""
		}
		return judgeSQL(ctx, t, scratch, packages, m)
	})
}

// judgeSQL runs the tests of one package after the other, until one fails.
func judgeSQL(ctx context.Context, t target, scratch string, packages []sqlTests, m *mutant) (state, string) {
	path := filepath.Join(scratch, fmt.Sprint("mutant", m.id))
	text, err := json.Marshal(m.sql)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return notCompiled, err.Error()
	}
	reached := false
	for _, of := range packages {
		in := target{dir: of.dir, flags: t.flags}
		env, limit := "HOLDFAST_SQL_MUTANT="+path, 30*time.Second+3*of.took
		failed, hung, err := runMatching(ctx, in, of.binary, cmp.Or(t.tests, "."), limit, env)
		if _, none := os.Stat(path + ".reached"); errors.Is(none, os.ErrNotExist) {
			continue
		}
		reached = true
		switch {
		case err == nil:
			continue
		case hung:
			return timedOut, failed
		case failed == "": // The whole binary ended.
			return killed, ""
		}
		// A second look, as judge's.
		if _, _, err := runTests(ctx, in, of.binary, []string{failed}, limit, env); err != nil {
			return killed, failed
		}
		if failed, _, err := runMatching(ctx, in, of.binary, cmp.Or(t.tests, "."), limit, env); err != nil {
			return killed, failed
		}
	}
	if !reached {
		return unreached, ""
	}
	return survived, ""
}
