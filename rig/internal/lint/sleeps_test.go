package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// A test that sleeps is slow where the machine is quick and fails where it is busy. It waits for an event, polls with
// package internal/test/wait, or runs by the clock of testing/synctest. Where time itself is the subject, a comment that
// begins with "sleep:" says why.
func TestSleeps_ATestSleepsOnlyWhereItSaysWhy(t *testing.T) {
	explained := 0
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		found, said := sleeps(t, file, read(t, file))
		explained += said
		for _, at := range found {
			t.Errorf("%s sleeps: wait for an event, with internal/test/wait or in testing/synctest, or say why not in a comment "+
				`on this line or the one before, "// sleep: ..."`, at)
		}
	}
	if explained == 0 {
		t.Error("no sleep says why: the search has gone blind")
	}
}

func TestSleeps_NoSleepEscapesTheSearch(t *testing.T) {
	for _, c := range []struct {
		body             string
		found, explained int
	}{
		{"time.Sleep(d)", 1, 0},
		{"time.Sleep(d) // until it is there", 1, 0},
		{"for !ok() {\ntime.Sleep(d)\n}", 1, 0},
		{"nap := time.Sleep\nnap(d)", 1, 0},
		{"synctest.Test(t, run)\ntime.Sleep(d)", 1, 0},
		{"time.Sleep(d) // sleep: a rate needs a span of time", 0, 1},
		{"// sleep: a rate needs a span of time\ntime.Sleep(d)", 0, 1},
		{"// sleep: a rate needs a span of time\n\ntime.Sleep(d)", 1, 0},
		{"synctest.Test(t, func(t *testing.T) { time.Sleep(d) })", 0, 0},
		{"synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(d) }() })", 0, 0},
		{"_ = `time.Sleep(d)`", 0, 0},
	} {
		found, explained := sleeps(t, "planted_test.go", "package p\nfunc TestX(t *testing.T) {\n"+c.body+"\n}")
		if len(found) != c.found || explained != c.explained {
			t.Errorf("in %q it finds %v and %d that say why, want %d and %d", c.body, found, explained, c.found, c.explained)
		}
	}
}

// sleeps says where a file calls, or hands on, time.Sleep by the clock of the machine without a comment that says why, and
// how many comments do.
func sleeps(t *testing.T, file, text string) (found []string, explained int) {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	says := map[int]bool{} // lines whose sleep is explained
	for _, group := range parsed.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "// sleep: ") {
				line := files.Position(c.Pos()).Line
				says[line], says[line+1] = true, true
			}
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if isMember(n.Fun, "synctest", "Test") {
				return false // a bubble has a clock of its own
			}
		case *ast.SelectorExpr:
			if !isMember(n, "time", "Sleep") {
				return true
			}
			if at := files.Position(n.Pos()); says[at.Line] {
				explained++
			} else {
				at.Filename = filepath.ToSlash(at.Filename)
				found = append(found, at.String())
			}
		}
		return true
	})
	return found, explained
}

// isMember says whether an expression is the name of a package's member.
func isMember(e ast.Expr, pkg, member string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != member {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
