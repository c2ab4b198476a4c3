package main

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
)

//go:embed equivalent.txt
var equivalentText string

// declared are the mutants that change nothing that anybody sees, with the reasons.
type declared map[string]string

// readEquivalent reads equivalent.txt: the name of a mutant, as the report prints it, and below it the reason, after a tab. Names
// that follow each other share a reason. Lines that begin with # are comments.
func readEquivalent(text string) (declared, error) {
	d := declared{}
	var names []string
	given := true
	for i, line := range strings.Split(text, "\n") {
		switch reason, indented := strings.CutPrefix(line, "\t"); {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case indented && len(names) == 0:
			return nil, fmt.Errorf("equivalent.txt:%d is a reason: there must be a mutant above it", i+1)
		case indented:
			for _, name := range names {
				d[name] = strings.TrimSpace(d[name] + " " + reason)
			}
			given = true
		default:
			if given {
				names, given = nil, false
			}
			names = append(names, line)
			if d[line] != "" {
				return nil, fmt.Errorf("equivalent.txt:%d names a mutant a second time: %s", i+1, line)
			}
		}
	}
	if !given {
		return nil, fmt.Errorf("equivalent.txt ends with %q: it must have a reason", names[0])
	}
	return d, nil
}

// stale are the declared mutants of some files that do not exist.
func (d declared) stale(t target, files []string, found []*mutant) []string {
	exists := map[string]bool{}
	for _, m := range found {
		exists[m.name] = true
	}
	var stale []string
	for name := range d {
		for _, file := range files {
			if strings.HasPrefix(name, t.path(file)+" ") && !exists[name] {
				stale = append(stale, name)
			}
		}
	}
	slices.Sort(stale)
	return stale
}

// report prints what became of the mutants, and returns the share that was killed.
func report(out io.Writer, all []*mutant, verbose bool) float64 {
	type row struct {
		name   string
		states map[state]int
		n      int
	}
	var rows []*row
	total := &row{name: "all", states: map[state]int{}}
	for _, m := range all {
		file, _, _ := strings.Cut(m.name, " ")
		if len(rows) == 0 || rows[len(rows)-1].name != file {
			rows = append(rows, &row{name: file, states: map[state]int{}})
		}
		for _, r := range []*row{rows[len(rows)-1], total} {
			r.states[m.state]++
			r.n++
		}
		switch {
		case m.state == survived || m.state == unreached:
			fmt.Fprintf(out, "\n%s\n%s/%s:%d: %s\n", m.name, strings.Split(file, "/")[0], m.file, m.line, m.state)
			for _, line := range strings.Split(m.was, "\n") {
				fmt.Fprintf(out, "\t- %s\n", strings.TrimSpace(line))
			}
			for _, line := range strings.Split(m.is, "\n") {
				fmt.Fprintf(out, "\t+ %s\n", strings.TrimSpace(line))
			}
		case verbose:
			fmt.Fprintf(out, "%s: %s %s\n", m.name, m.state, m.by+m.reason)
		}
	}
	fmt.Fprintf(out, "\n%-28s %8s %8s %10s %9s %12s %11s %13s %7s\n", "file", "mutants", "killed", "timed out", "survived", "not reached", "equivalent", "not compiled", "share")
	for _, r := range append(rows, total) {
		s := r.states
		fmt.Fprintf(out, "%-28s %8d %8d %10d %9d %12d %11d %13d %6.1f%%\n", r.name, r.n, s[killed], s[timedOut], s[survived], s[unreached], s[equivalent],
			s[notCompiled], 100*share(s))
	}
	return share(total.states)
}

// share is how much of what could be killed was killed. A mutant with which a test does not end is killed: go test fails.
func share(s map[state]int) float64 {
	dead := s[killed] + s[timedOut]
	if of := dead + s[survived] + s[unreached]; of > 0 {
		return float64(dead) / float64(of)
	}
	return 1
}
