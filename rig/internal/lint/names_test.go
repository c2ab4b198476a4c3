package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// longest is how long a test's name may be, so that it can be read in a list and typed after -run.
const longest = 60

// ruleNumber is the number of a rule of docs/ at the head of a test's name, as in TestR5ARepeat.
var ruleNumber = regexp.MustCompile(`^Test[RCW]\d+[A-Z]`)

func TestATestIsNamedByItsBehaviourInAtMost60Characters(t *testing.T) {
	tests := 0
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			tests++
			if name := f.Name.Name; len(name) > longest {
				t.Errorf("%s: %s has %d characters, at most %d: say the behaviour, and the circumstances in a comment", file, name, len(name), longest)
			} else if ruleNumber.MatchString(name) {
				t.Errorf("%s: %s begins with a rule's number: it belongs into a comment", file, name)
			}
		}
	}
	if tests < 1000 {
		t.Errorf("only %d tests were found: the search has gone blind", tests)
	}
}
