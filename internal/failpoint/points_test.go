package failpoint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// declared is a constant of points.go.
type declared struct{ name, point, before, after string }

// readPoints reads points.go as the compiler does.
func readPoints(t *testing.T) []declared {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "points.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var all []declared
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		before, after, _ := strings.Cut(strings.TrimSpace(spec.Comment.Text()), " | ")
		all = append(all, declared{spec.Names[0].Name, value, before, after})
		return true
	})
	if len(all) < 50 {
		t.Fatalf("%d points were found: the search has gone blind", len(all))
	}
	return all
}

func TestPoints_EveryPointHasANameOfItsOwnAndSaysWhatLiesAroundIt(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range readPoints(t) {
		if seen[d.point] {
			t.Errorf("two constants say %q", d.point)
		}
		seen[d.point] = true
		if d.before == "" || d.after == "" {
			t.Errorf("%s: its comment must say what lies before it | what lies after it", d.name)
		}
	}
}

func TestPoints_EveryPointIsHitSomewhereAndOnlyDeclaredOnesAre(t *testing.T) {
	hit := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Hit" {
				if from, ok := f.X.(*ast.Ident); ok && from.Name == "failpoint" {
					p, ok := call.Args[0].(*ast.SelectorExpr)
					if !ok {
						t.Errorf("%s hits a point that is not one of the constants", path)
						return true
					}
					hit[p.Sel.Name] = append(hit[p.Sel.Name], path)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range readPoints(t) {
		if len(hit[d.name]) == 0 {
			t.Errorf("nothing hits %s", d.name)
		}
		delete(hit, d.name)
	}
	for name, where := range hit {
		t.Errorf("%s is hit in %q and not declared", name, where)
	}
}

func TestPoints_TheDocumentListsEveryPointAsTheCodeDeclaresIt(t *testing.T) {
	const path = root + "/docs/project/failpoints.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| point | before it | after it |\n|---|---|---|\n")
	for _, d := range readPoints(t) {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", d.point, d.before, d.after)
	}
	if !strings.Contains(string(text), "\n"+want.String()) {
		t.Errorf("%s does not have the table that points.go makes:\n%s", path, &want)
	}
}

// A program that is built without the tag has nothing of all this: the package imports nothing and has no variables.
func TestPoints_WithoutTheTagThePackageIsEmpty(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{join .GoFiles \" \"}} imports {{.Imports}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "off.go points.go imports []" {
		t.Errorf("the package is %s, want off.go and points.go, which import nothing", got)
	}
	out, err = exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "can inline Hit") {
		t.Errorf("the compiler does not inline Hit: %v: %s", err, out)
	}
}

// The tests of code under the tag are not part of a usual run: this one runs them.
func TestPoints_WithTheTagItObeysItsOrder(t *testing.T) {
	out, err := exec.Command("go", "test", "-tags", "failpoints", "-run", "^TestOn_", "-count", "1", "-v", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS: TestOn_") {
		t.Errorf("%v:\n%s", err, out)
	}
}
