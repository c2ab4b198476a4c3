// Mutate changes the code that decides, one small change at a time, and says which changes no test notices:
//
//	go run ./rig/mutate
//	go run ./rig/mutate -only 'relay/(cursor|log)' -v
//	go run ./rig/mutate -statements -only dlq
//
// It runs at the top of the repository. docs/project/mutation.md says what it changes, how it chooses tests, and what its report means.
// Nothing in the checkout is edited: all mutants of a package are compiled into one test binary, by go's -overlay, and a
// variable of the environment turns one of them on.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"time"
)

// options are what the command line says.
type options struct {
	only    *regexp.Regexp // which files
	mutants *regexp.Regexp // which mutants, by their names
	workers int
	sql     bool          // statements, in place of Go
	slowest time.Duration // a test that takes longer is left out
	long    bool          // tests are asked that -short leaves out
	verbose bool
	least   float64
}

func main() {
	only := flag.String("only", "", "a regular expression: the `files` to mutate")
	mutants := flag.String("mutants", "", "a regular expression: the `mutants` to run, by their names as the report prints them")
	sql := flag.Bool("statements", false, "mutate the conditions of SQL statements, in place of Go")
	workers := flag.Int("workers", max(1, runtime.NumCPU()/2), "how many mutants are tried at a time")
	slowest := flag.Duration("slowest", 20*time.Second, "leave out tests that take longer")
	long := flag.Bool("long", false, "ask tests too that -short leaves out")
	verbose := flag.Bool("v", false, "say of every mutant which test killed it")
	least := flag.Float64("least", 0, "fail if a smaller `share` of all mutants is killed: 0.9, say")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := options{
		workers: *workers,
		sql:     *sql,
		slowest: *slowest,
		long:    *long,
		verbose: *verbose,
		least:   *least,
	}
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		o.mutants, err = regexp.Compile(*mutants)
	}
	if err == nil {
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	equivalent, err := readEquivalent(equivalentText)
	if err != nil {
		return err
	}
	var all []*mutant
	for _, t := range targets {
		files := t.chosen(o.only)
		if len(files) == 0 || t.sql != o.sql {
			continue
		}
		if !o.long {
			t.flags = append(slices.Clone(t.flags), "-test.short")
		}
		p, err := load(ctx, t.dir)
		if err != nil {
			return err
		}
		var found []*mutant
		for _, name := range files {
			find := p.find
			if t.sql {
				find = p.findSQL
			}
			ms, err := find(name)
			if err != nil {
				return err
			}
			found = append(found, ms...)
		}
		// What is declared equivalent and is not among the mutants of its file was declared for other code.
		if stale := equivalent.stale(t, files, found); len(stale) > 0 && o.mutants.String() == "" {
			return fmt.Errorf("equivalent.txt names mutants that do not exist, correct or remove them: %q", stale)
		}
		kept := found[:0]
		for _, m := range found {
			if o.mutants.MatchString(m.name) {
				kept = append(kept, m)
			}
		}
		if t.sql {
			err = trySQL(ctx, o, out, t, kept, equivalent)
		} else {
			err = try(ctx, o, out, t, p, kept, equivalent)
		}
		if err != nil {
			return err
		}
		all = append(all, kept...)
	}
	share := report(out, all, o.verbose)
	if share < o.least {
		return fmt.Errorf("%.3f of the mutants were killed: at least %.3f must be", share, o.least)
	}
	return nil
}
