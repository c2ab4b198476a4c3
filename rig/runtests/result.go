package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json, as "go doc test2json" says.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64 // seconds
}

// result is what came of one go test. It is an io.Writer of its events: end is called after the last.
type result struct {
	out  io.Writer
	err  error // go test did not run to its end
	rest []byte

	packages map[string]*pkg
	builds   map[string]*bytes.Buffer // what the compiler said, by import path
	slow     []event
}

// pkg is what is known of a package.
type pkg struct {
	ended    string // "", "pass", "fail", "skip"
	unbuilt  bool
	tests    map[string]string        // the outcome of each test and subtest, "" while it runs
	output   map[string]*bytes.Buffer // what each said, dropped when it passed; "" is the package
	duration float64
}

func newResult(out io.Writer) *result {
	return &result{out: out, packages: map[string]*pkg{}, builds: map[string]*bytes.Buffer{}}
}

// Write takes go test's output in pieces of any size.
func (r *result) Write(p []byte) (int, error) {
	r.rest = append(r.rest, p...)
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		r.take(line)
		r.rest = rest
	}
}

func (r *result) take(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Fprintf(r.out, "%s\n", line) // not go test's: what somebody else wrote
		return
	}
	if e.ImportPath != "" { // build-output, build-fail
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = new(bytes.Buffer)
		}
		r.builds[e.ImportPath].WriteString(e.Output)
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]string{}, output: map[string]*bytes.Buffer{}}
		r.packages[e.Package] = p
	}
	switch e.Action {
	case "run":
		p.tests[e.Test] = ""
	case "output":
		if p.output[e.Test] == nil {
			p.output[e.Test] = new(bytes.Buffer)
		}
		p.output[e.Test].WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			p.ended, p.duration, p.unbuilt = e.Action, e.Elapsed, e.FailedBuild != ""
			if p.unbuilt && r.builds[e.FailedBuild] != nil {
				_, _ = r.builds[e.FailedBuild].WriteTo(r.out)
			}
			r.print(e.Package, p)
			return
		}
		p.tests[e.Test] = e.Action
		if e.Action != "fail" {
			delete(p.output, e.Test)
		}
		r.slow = append(r.slow, e)
	}
}

// print writes a package's line, with all that was said by its tests that failed or did not end.
func (r *result) print(name string, p *pkg) {
	if p.ended == "fail" {
		for _, test := range slices.Sorted(maps.Keys(p.output)) {
			if test == "" || p.tests[test] != "pass" {
				_, _ = p.output[test].WriteTo(r.out)
			}
		}
	} else if n := len(p.tests); n > 0 {
		fmt.Fprintf(r.out, "ok  \t%s\t%.3fs\n", name, p.duration)
	}
	p.output = map[string]*bytes.Buffer{}
}

// end takes what has no newline, and packages that never ended.
func (r *result) end() {
	if len(r.rest) > 0 {
		r.take(r.rest)
		r.rest = nil
	}
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		if p := r.packages[name]; p.ended == "" {
			p.ended = "fail"
			r.print(name, p)
			fmt.Fprintf(r.out, "FAIL\t%s did not end\n", name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(r.builds)) {
		if r.failed() {
			_, _ = r.builds[path].WriteTo(r.out)
		}
	}
}

// failure is a test that failed, or, with no name, a package that did without saying which test it was.
type failure struct {
	pkg, test string
	unbuilt   bool
}

func (f failure) String() string { return strings.TrimSpace(f.pkg + " " + f.test) }

// again says whether another run may tell more.
func (f failure) again() bool { return !f.unbuilt }

// command is what a person types to repeat it.
func (f failure) command(args []string) string {
	words := []string{"go", "test"}
	for _, word := range f.alone(args) {
		if strings.ContainsAny(word, "^$|() ") {
			word = "'" + word + "'"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// alone are the arguments of go test that run it with nothing beside it: the flags of args that say how tests are built and
// judged, no package of theirs, and what they give to the tests themselves.
func (f failure) alone(args []string) []string {
	all := []string{"-count=1", "-p", "1", "-parallel", "1"}
	var own []string
	if i := slices.Index(args, "-args"); i >= 0 {
		args, own = args[:i], args[i:]
	}
	for i, arg := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || slices.Contains([]string{"count", "p", "parallel", "run", "skip"}, name) {
			continue
		}
		all = append(all, arg)
		if slices.Contains([]string{"timeout", "tags", "vet"}, name) && !strings.Contains(arg, "=") && i+1 < len(args) {
			all = append(all, args[i+1])
		}
	}
	if f.test != "" {
		all = append(all, "-run", "^"+regexp.QuoteMeta(f.test)+"$")
	}
	return slices.Concat(all, []string{f.pkg}, own)
}

// failures are the tests that failed, without their subtests, and the packages that name none.
func (r *result) failures() []failure {
	var all []failure
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		p := r.packages[name]
		if p.ended != "fail" {
			continue
		}
		n, unended := 0, false
		for _, test := range slices.Sorted(maps.Keys(p.tests)) {
			if strings.Contains(test, "/") {
				continue
			}
			switch p.tests[test] {
			case "fail":
				all = append(all, failure{pkg: name, test: test})
				n++
			case "":
				unended = true
			}
		}
		if n == 0 || unended { // those after a panic were not run at all
			all = slices.DeleteFunc(all, func(f failure) bool { return f.pkg == name })
			all = append(all, failure{pkg: name, unbuilt: p.unbuilt})
		}
	}
	return all
}

func (r *result) failed() bool { return r.err != nil || len(r.failures()) > 0 }
func (r *result) passed() int  { return r.count("pass") }
func (r *result) skipped() int { return r.count("skip") }

// count is how many tests ended so, without their subtests.
func (r *result) count(outcome string) (n int) {
	for _, p := range r.packages {
		for test, got := range p.tests {
			if got == outcome && !strings.Contains(test, "/") {
				n++
			}
		}
	}
	return n
}

// printSlow lists the tests that took longer than limit, the longest first, and subtests too: the time of a test is without that
// of its subtests that run side by side.
func (r *result) printSlow(out io.Writer, limit time.Duration) {
	slices.SortFunc(r.slow, func(a, b event) int { return int(1000 * (b.Elapsed - a.Elapsed)) })
	for _, e := range r.slow {
		if e.Elapsed > limit.Seconds() {
			fmt.Fprintf(out, "slow\t%.2f\t%s\t%s\t%s\n", e.Elapsed, e.Package, e.Test, e.Action)
		}
	}
}
