package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sqlSwitch is added to package sqlschema, through which every statement goes. A variable of the environment names a file with the
// mutants, another one the number of that which is on. When none is, the binary notes whose statements its tests prepare.
const sqlSwitch = `package sqlschema

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
)

type mutant struct {
	ID      int
	Was, Is string
}

var (
	mutants     = readMutants()
	mutantOn, _ = strconv.Atoi(os.Getenv("HOLDFAST_MUTANT"))
	reachedNow  sync.Map
)

func readMutants() (all []mutant) {
	text, err := os.ReadFile(os.Getenv("HOLDFAST_SQL_MUTANTS"))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		panic(err)
	}
	return all
}

func mutated(statement string) string {
	for _, m := range mutants {
		switch path := os.Getenv("HOLDFAST_MUTANTS_REACHED"); {
		case m.ID != mutantOn && path == "" || !strings.Contains(statement, m.Was):
		case m.ID == mutantOn:
			return strings.Replace(statement, m.Was, m.Is, 1)
		default:
			if _, was := reachedNow.LoadOrStore(m.ID, true); was {
				continue
			}
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				panic(err)
			}
			f.WriteString(strconv.Itoa(m.ID) + "\n")
			f.Close()
		}
	}
	return statement
}
`

// sqlDoor is where every statement passes.
const sqlDoor = "func In(name, statement string) string {\n"

// sqlTests are the tests of a package, in a binary whose statements can be changed.
type sqlTests struct {
	of     target
	binary string
	tests  []asked
}

// trySQL runs the quick tests of a target, and of the packages that it names besides, against the mutants of its statements.
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
	type numbered struct {
		ID int
		sqlText
	}
	var list []numbered
	for i, m := range all {
		m.id = i + 1
		list = append(list, numbered{m.id, *m.sql})
	}
	path := filepath.Join(scratch, "mutants")
	if text, err = json.Marshal(list); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err == nil {
		err = os.Setenv("HOLDFAST_SQL_MUTANTS", path)
	}
	if err != nil {
		return err
	}
	var packages []sqlTests
	asked := 0
	for i, dir := range append([]string{t.dir}, t.also...) {
		p, own := sqlTests{of: t}, filepath.Join(scratch, fmt.Sprint("sql", i))
		p.of.dir = dir
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		var said string
		if p.binary, said, err = (&pkg{dir: dir}).build(ctx, own, "sql", over); err != nil {
			return fmt.Errorf("build the tests of %s: %w\n%s", dir, err, said)
		}
		if p.tests, err = survey(ctx, o, p.of, own, p.binary); err != nil {
			return err
		}
		if len(p.tests) == 0 {
			return fmt.Errorf("no test of %s passes without a mutant: say -v", dir)
		}
		asked += len(p.tests)
		packages = append(packages, p)
	}
	fmt.Fprintf(out, "%s: %d mutants of statements, %d tests\n", t.dir, len(all), asked)
	return each(ctx, o, t, all, func(m *mutant) (state, string) {
		if m.reason = eq[m.name]; m.reason != "" {
			return equivalent, ""
		}
		become := unreached
		for _, p := range packages {
			switch s, by := meet(ctx, p.of, p.binary, reaching(p.tests, m.id), "HOLDFAST_MUTANT="+strconv.Itoa(m.id)); s {
			case unreached:
			case survived:
				become = survived
			default:
				return s, by
			}
		}
		return become, ""
	})
}
