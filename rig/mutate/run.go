package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// state is what became of a mutant.
type state string

const (
	killed      state = "killed"       // a test failed
	timedOut    state = "timed out"    // a test did not end, as one that waits for what never comes
	survived    state = "survived"     // no test noticed
	unreached   state = "not reached"  // no test comes by
	notCompiled state = "not compiled" // the compiler refused it
	equivalent  state = "equivalent"   // equivalent.txt says that it changes nothing that anybody sees
)

// asked is a test of the package: how long it takes, and which mutants it reaches.
type asked struct {
	name    string
	took    time.Duration
	reaches map[int]bool
}

// try runs the tests of a target against its mutants.
func try(ctx context.Context, o options, out io.Writer, t target, p *pkg, all []*mutant, eq declared) error {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	for i, m := range all {
		m.id = i + 1
	}
	binary, err := p.buildAll(ctx, scratch, all)
	if err != nil {
		return err
	}
	tests, err := survey(ctx, o, t, scratch, binary)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d mutants, %d tests\n", t.dir, len(all), len(tests))
	return each(ctx, o, t, all, func(m *mutant) (state, string) { return judge(ctx, t, p, scratch, binary, tests, all, m, eq) })
}

// each has mutants judged, some at a time, and says meanwhile how far it is and which live.
func each(ctx context.Context, o options, t target, all []*mutant, judge func(*mutant) (state, string)) error {
	work, done := make(chan *mutant), make(chan *mutant)
	var workers sync.WaitGroup
	for range o.workers {
		workers.Go(func() {
			for m := range work {
				m.state, m.by = judge(m)
				done <- m
			}
		})
	}
	go func() {
		defer close(done)
		for _, m := range all {
			if ctx.Err() == nil {
				work <- m
			}
		}
		close(work)
		workers.Wait()
	}()
	began, n := time.Now(), 0
	for m := range done {
		if n++; n%50 == 0 {
			fmt.Fprintf(os.Stderr, "%s: %d of %d mutants, %v\n", t.dir, n, len(all), time.Since(began).Round(time.Second))
		}
		if m.state == survived || m.state == unreached {
			fmt.Fprintf(os.Stderr, "%s:%d: %s: %s\n", m.file, m.line, m.state, m.name)
		}
	}
	return ctx.Err()
}

// survey runs each test alone without a mutant, and notes how long it takes and which mutants it reaches, by their numbers. A test
// that fails, skips or is too slow is not asked about mutants.
func survey(ctx context.Context, o options, t target, scratch, binary string) ([]asked, error) {
	list := exec.CommandContext(ctx, binary, "-test.list", ".")
	list.Dir = t.dir
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", t.dir, err)
	}
	want, err := regexp.Compile(t.tests)
	if err != nil {
		return nil, err
	}
	var tests []asked
	for _, name := range strings.Fields(string(names)) {
		if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Fuzz") && !strings.HasPrefix(name, "Example") || !want.MatchString(name) {
			continue
		}
		reached := filepath.Join(scratch, "reached-"+name)
		began := time.Now()
		failed, _, err := runTests(ctx, t, binary, []string{name}, o.slowest+2*time.Second, "HOLDFAST_MUTANTS_REACHED="+reached)
		took := time.Since(began)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil || took > o.slowest {
			if o.verbose && err != nil && took < o.slowest {
				fmt.Fprintf(os.Stderr, "%s: %s fails without a mutant, and is not asked\n", t.dir, cmp.Or(failed, name))
			}
			continue
		}
		a := asked{name: name, took: took, reaches: map[int]bool{}}
		text, _ := os.ReadFile(reached)
		for _, id := range strings.Fields(string(text)) {
			n, _ := strconv.Atoi(id)
			a.reaches[n] = true
		}
		tests = append(tests, a)
	}
	slices.SortFunc(tests, func(a, b asked) int { return cmp.Compare(a.took, b.took) })
	return tests, nil
}

// judge runs the tests that reach a mutant, the quick ones first, until one fails.
func judge(ctx context.Context, t target, p *pkg, scratch, binary string, tests []asked, all []*mutant, m *mutant, eq declared) (state, string) {
	if m.reason = eq[m.name]; m.reason != "" {
		return equivalent, ""
	}
	like := []int{m.id}
	env := "HOLDFAST_MUTANT=" + strconv.Itoa(m.id)
	if m.before == nil {
		alone, err := p.buildAlone(ctx, scratch, m)
		if err != nil {
			return notCompiled, ""
		}
		defer os.Remove(alone)
		binary, env = alone, ""
		// It has no switch that tests could reach. Those are asked that reach others of its function.
		for _, other := range all {
			if other.file == m.file && other.function == m.function {
				like = append(like, other.id)
			}
		}
	}
	return meet(ctx, t, binary, reaching(tests, like...), env)
}

// reaching are the tests that reach one of some mutants.
func reaching(tests []asked, ids ...int) (some []asked) {
	for _, a := range tests {
		if slices.ContainsFunc(ids, func(id int) bool { return a.reaches[id] }) {
			some = append(some, a)
		}
	}
	return some
}

// meet runs tests, in groups, the quick ones first, until one fails.
func meet(ctx context.Context, t target, binary string, tests []asked, env string) (state, string) {
	if len(tests) == 0 {
		return unreached, ""
	}
	var groups [3][]asked
	for _, a := range tests {
		switch {
		case a.took < 200*time.Millisecond:
			groups[0] = append(groups[0], a)
		case a.took < time.Second:
			groups[1] = append(groups[1], a)
		default:
			groups[2] = append(groups[2], a)
		}
	}
	for _, group := range groups {
		if len(group) == 0 {
			continue
		}
		var names []string
		limit := 10 * time.Second
		for _, a := range group {
			names = append(names, a.name)
			limit += 4 * a.took
		}
		failed, hung, err := runTests(ctx, t, binary, names, limit, env)
		if err == nil {
			continue
		}
		if hung {
			return timedOut, failed
		}
		// A second look at the test that failed, alone: a test may fail for its own reasons.
		if failed != "" {
			if _, _, err := runTests(ctx, t, binary, []string{failed}, limit, env); err == nil {
				if _, _, err := runTests(ctx, t, binary, names, limit, env); err == nil {
					continue
				}
			}
		}
		return killed, failed
	}
	return survived, ""
}

var (
	failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	hungTest   = regexp.MustCompile(`(?m)^panic: test timed out after`)
	running    = regexp.MustCompile(`(?m)^\s+(Test\w+|Fuzz\w+|Example\w*)[^\n]* \(\d`)
)

// memory is what a test binary may take, in KiB: a mutant may fill a list for ever.
const memory = 6 << 20

// runTests runs some tests of a binary, until the first fails.
func runTests(ctx context.Context, t target, binary string, names []string, limit time.Duration, env string) (failed string, hung bool, err error) {
	tests := "^(" + strings.Join(names, "|") + ")$"
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	args := append([]string{"-c", fmt.Sprintf(`ulimit -v %d; exec "$0" "$@"`, memory), binary, "-test.run=" + tests,
		"-test.failfast", "-test.timeout=" + limit.String()}, t.flags...)
	c := exec.CommandContext(ctx, "sh", args...)
	c.Dir = t.dir
	c.WaitDelay = time.Second
	// The seeds of random tests are those of every run.
	c.Env = append(os.Environ(), "HOLDFAST_TEST_SEED=1", env)
	out, err := c.CombinedOutput()
	if err == nil {
		return "", false, nil
	}
	if m := failedTest.FindSubmatch(out); m != nil {
		failed = string(m[1])
	}
	if hungTest.Match(out) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		if m := running.FindSubmatch(out); m != nil {
			failed = string(m[1])
		}
		return failed, true, err
	}
	return failed, false, err
}
