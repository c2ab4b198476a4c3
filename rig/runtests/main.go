// Runtests runs go test, tells a test that fails from one that fails now and then, and says at the end what came of it.
//
//	go run ./rig/runtests -- -short work             # a test that failed is run once more, alone
//	go run ./rig/runtests -times 10 -busy 2 -- -short ./...   # how steady they are, beside two busy loops
//
// What stands after "--" are go test's own arguments. A test that fails is run again in a process with nothing beside it
// (-p 1 -parallel 1). If it fails again the run has failed; if it passes, the last lines name it as flaky and the run goes
// on. A package that ended without saying which of its tests failed, by a panic or by go test's time-out, is run again as
// a whole. One that does not compile is not. With -times nothing is run again: each failure counts.
//
// The last line is "N passed, N failed, N skipped", of tests without their subtests; before it stands, for each failure,
// the command that repeats it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// mostAgain is how many failing tests are run again. More of them are no accident.
const mostAgain = 12

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	times := flag.Int("times", 1, "how often to run them; more than once counts failures and runs nothing again")
	busy := flag.Int("busy", 0, "how many loops keep a processor busy meanwhile")
	once := flag.Bool("once", false, "run nothing again: for tests that draw seeds, which another run would not meet again")
	slower := flag.Duration("slower", 0, "list tests that took longer than this")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "runtests: the arguments of go test are missing: runtests -- -short ./...")
		os.Exit(2)
	}
	load(ctx, *busy)
	r := runner{out: os.Stdout, test: goTest}
	ok := false
	if *times > 1 {
		ok = r.steady(ctx, *times, flag.Args())
	} else {
		ok = r.gate(ctx, flag.Args(), *once, *slower)
	}
	if !ok {
		os.Exit(1)
	}
}

// load keeps processors busy until ctx ends, as other programs of the machine would: by processes of their own.
func load(ctx context.Context, loops int) {
	for range loops {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		endWithParent(cmd)
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, "runtests: start a busy loop:", err)
			os.Exit(2)
		}
	}
}

// goTest runs go test -json and hands its output over while it is written.
func goTest(ctx context.Context, args []string, json io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = json, io.MultiWriter(os.Stderr, &said)
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return nil // The events say what failed.
	}
	return err
}

// runner runs tests by test, which writes go test's events.
type runner struct {
	out  io.Writer
	test func(ctx context.Context, args []string, json io.Writer) error
}

// gate runs the tests, and what failed once more, and returns whether all is well.
func (r runner) gate(ctx context.Context, args []string, once bool, slower time.Duration) bool {
	first := r.run(ctx, args)
	if slower > 0 {
		first.printSlow(r.out, slower)
	}
	failed := first.failures()
	var flaky, broken []failure
	switch {
	case once:
		broken = failed
	case len(failed) > mostAgain:
		fmt.Fprintf(r.out, "%d tests failed: too many to be accidents, none is run again\n", len(failed))
		broken = failed
	default:
		for _, f := range failed {
			if ctx.Err() != nil || !f.again() {
				broken = append(broken, f)
				continue
			}
			fmt.Fprintf(r.out, "\nonce more, alone: %s\n", f)
			if again := r.run(ctx, f.alone(args)); again.failed() || again.passed() == 0 {
				broken = append(broken, f)
			} else {
				flaky = append(flaky, f)
			}
		}
	}
	for _, f := range flaky {
		fmt.Fprintf(r.out, "FLAKY: %s failed, and passed alone\n", f)
	}
	for _, f := range broken {
		fmt.Fprintf(r.out, "FAILED: %s\n", f)
	}
	for _, f := range slices.Concat(flaky, broken) {
		fmt.Fprintf(r.out, "again: %s\n", f.command(args))
	}
	if first.err != nil {
		fmt.Fprintf(r.out, "go test: %v\n", first.err)
	}
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", first.passed()+len(flaky), len(broken), first.skipped())
	return len(broken) == 0 && first.err == nil && first.passed() > 0
}

// steady runs the tests so often, counts who failed, and returns whether nobody did.
func (r runner) steady(ctx context.Context, times int, args []string) bool {
	counts, runs, passed, skipped := map[string]int{}, 0, 0, 0
	commands := map[string]string{}
	for n := range times {
		began := time.Now()
		result := r.run(ctx, append([]string{"-count=1"}, args...))
		if ctx.Err() != nil {
			break
		}
		runs++
		passed, skipped = passed+result.passed(), skipped+result.skipped()
		failed := result.failures()
		if result.err != nil {
			failed = append(failed, failure{pkg: "go test", test: result.err.Error()})
		}
		for _, f := range failed {
			counts[f.String()]++
			commands[f.String()] = f.command(args)
		}
		fmt.Fprintf(r.out, "run %d of %d: %d passed, %d failed, in %v\n", n+1, times, result.passed(), len(failed), time.Since(began).Round(time.Second))
	}
	names, total := make([]string, 0, len(counts)), 0
	for name, n := range counts {
		names, total = append(names, name), total+n
	}
	slices.SortFunc(names, func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	for _, name := range names {
		fmt.Fprintf(r.out, "failed in %d of %d runs: %s\nagain: %s\n", counts[name], runs, name, commands[name])
	}
	fmt.Fprintf(r.out, "%d runs\n%d passed, %d failed, %d skipped\n", runs, passed, total, skipped)
	return total == 0 && runs == times && passed > 0
}

// run runs the tests once, and prints a line for each package and what a failing test said.
func (r runner) run(ctx context.Context, args []string) *result {
	result := newResult(r.out)
	result.err = r.test(ctx, args, result)
	result.end()
	return result
}
