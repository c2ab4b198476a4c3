// Fuzzall runs every fuzz target of the repository, one after another, each for the same time:
//
//	go run ./rig/fuzzall -for 30s
//	go run ./rig/fuzzall -for 5m -only Headers ./relay ./inbox
//
// What go test finds it writes to testdata/fuzz of the package, where every later go test tries it again; fuzzall goes on
// with the next target and fails in the end.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	each := flag.Duration("for", 30*time.Second, "how long each target runs")
	only := flag.String("only", "", "a regular expression: the targets to run")
	parallel := flag.Int("parallel", 1, "workers of a target")
	list := flag.Bool("list", false, "print the targets and run none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *each, *only, *parallel, *list, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "fuzzall:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, each time.Duration, only string, parallel int, list bool, dirs []string) error {
	pick, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("read -only: %w", err)
	}
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	var targets []target
	for _, dir := range dirs {
		found, err := find(dir, len(dirs) == 1 && dir == ".")
		if err != nil {
			return err
		}
		targets = append(targets, found...)
	}
	failed := 0
	for _, t := range targets {
		if !pick.MatchString(t.name) {
			continue
		}
		if list {
			fmt.Println(t.dir, t.name)
			continue
		}
		out, err := t.run(ctx, each, parallel)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed++
			fmt.Printf("FAIL %s %s\n%s", t.dir, t.name, out)
			continue
		}
		fmt.Printf("ok   %s %s: %s\n", t.dir, t.name, executions(out))
	}
	if failed > 0 {
		return fmt.Errorf("%d targets failed", failed)
	}
	return nil
}

// target is one Fuzz function, in a folder that go test takes.
type target struct{ dir, name string }

// find finds the targets in a folder, and below it if deep, in every module: go.work ties them together.
func find(dir string, deep bool) (targets []target, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != dir {
			if !deep || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				targets = append(targets, target{"./" + filepath.ToSlash(filepath.Dir(path)), f.Name.Name})
			}
		}
		return nil
	})
	return targets, err
}

func (t target) run(ctx context.Context, each time.Duration, parallel int) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", t.dir, "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(), "-parallel", fmt.Sprint(parallel))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

var execs = regexp.MustCompile(`execs: (\d+).*new interesting: (\d+)`)

// executions is the last count that go test gave.
func executions(out string) string {
	all := execs.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		return "too short a time to count"
	}
	last := all[len(all)-1]
	return last[1] + " executions, " + last[2] + " new interesting inputs"
}
