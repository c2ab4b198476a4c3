package idempotency

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The codes are a contract with clients: a change of one changes its page, and is seen.
func TestProblem_TheCodesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/http.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`(idempotency\\.\\w+)`").FindAllSubmatch(page, -1) {
		listed[string(m[1])] = true
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, d := range parsed.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, spec := range decl.Specs {
			code, err := strconv.Unquote(spec.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			known[code] = true
		}
	}
	if len(known) < 14 {
		t.Errorf("problem.go has only %d codes: the search has gone blind", len(known))
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(known))); diff != "" {
		t.Errorf("docs/reference/http.md (-) has other codes than problem.go (+):\n%s", diff)
	}
}
