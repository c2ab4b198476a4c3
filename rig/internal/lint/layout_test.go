package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"unicode"
)

// Whoever reads a method should see the type of its receiver: a short one begins as one of the words of the type does. A longer one
// says what it is.
func TestLayout_AReceiverBeginsAsItsTypeDoes(t *testing.T) {
	for _, file := range sources(t) {
		text := read(t, file)
		if strings.HasPrefix(text, "// Code generated") {
			continue
		}
		for _, said := range receivers(t, file, text) {
			t.Error(said)
		}
	}
}

func TestLayout_AReceiverOfAnotherLetterIsFound(t *testing.T) {
	for method, found := range map[string]bool{
		"func (p *Publisher) Close() {}":       false,
		"func (pu Publisher) Close() {}":       false,
		"func (k *Publisher) Close() {}":       true,
		"func (e *PayloadError) Close() {}":    false,
		"func (p PayloadError) Close() {}":     false,
		"func (x PayloadError) Close() {}":     true,
		"func (k *cache[K, V]) Close() {}":     true,
		"func (c *cache[K]) Close() {}":        false,
		"func (keys standard) Close() {}":      false,
		"func (standard) Close() {}":           false,
		"func (_ standard) Close() {}":         false,
		"func Close(k *Publisher) { k.End() }": false,
	} {
		if got := receivers(t, "planted.go", "package p\n"+method); (len(got) == 1) != found {
			t.Errorf("%s: %q", method, got)
		}
	}
}

// receivers are the methods whose receivers have another letter than their types.
func receivers(t *testing.T, file, text string) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
			continue
		}
		name, of := f.Recv.List[0].Names[0].Name, receiverType(f.Recv.List[0].Type)
		fits := len(name) > 2 || name == "_"
		for i, r := range of {
			if i == 0 || unicode.IsUpper(r) {
				fits = fits || rune(name[0]) == unicode.ToLower(r)
			}
		}
		if !fits {
			found = append(found, fmt.Sprintf("%s: the receiver %s is of the type %s: it must begin as one of the words of the type does", fset.Position(f.Pos()), name, of))
		}
	}
	return found
}

func receiverType(of ast.Expr) string {
	switch of := of.(type) {
	case *ast.StarExpr:
		return receiverType(of.X)
	case *ast.IndexExpr:
		return receiverType(of.X)
	case *ast.IndexListExpr:
		return receiverType(of.X)
	case *ast.Ident:
		return of.Name
	}
	return ""
}

// mostColumns is how long a line with a struct literal may be.
const mostColumns = 100

// A change of one field is one line of a difference. Left alone are literals of two fields, rows of tables, tests, and examples, which are laid
// out for pages.
func TestLayout_ALongStructLiteralHasOneFieldALine(t *testing.T) {
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "examples/") {
			continue
		}
		for _, said := range longLiterals(t, file, read(t, file)) {
			t.Error(said)
		}
	}
}

func TestLayout_ALongStructLiteralIsFound(t *testing.T) {
	value := `"` + strings.Repeat("x", 80) + `"`
	for literal, found := range map[string]bool{
		"Config{A: 1, B: 2, C: " + value + "}":              true,
		"Config{A: 1, B: " + value + "}":                    false,
		"Config{A: 1, B: 2, C: 3}":                          false,
		"Config{\n\tA: 1,\n\tB: 2,\n\tC: " + value + ",\n}": false,
		"Config{A: 1, B: " + value + ",\n\tC: 3}":           true,
		"Config{\n\tA: 1, B: 2, C: " + value + ",\n}":       true,
		"Config{\n\tA: 1, B: 2,\n\tC: " + value + ",\n}":    false,
		"Config{1, 2, " + value + "}":                       false,
		"[]Config{{A: 1, B: 2, C: " + value + "}}":          false,
		"map[string]int{A: 1, B: 2, " + value + ": 3}":      false,
	} {
		if got := longLiterals(t, "planted.go", "package p\n\nvar planted = "+literal); (len(got) == 1) != found {
			t.Errorf("%s: %q", literal, got)
		}
	}
}

// longLiterals are the struct literals of three fields and more of which several begin on a line beyond mostColumns.
func longLiterals(t *testing.T, file, text string) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	ast.Inspect(parsed, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || literal.Type == nil || len(literal.Elts) < 3 {
			return true
		}
		for _, field := range literal.Elts {
			pair, ok := field.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if _, ok := pair.Key.(*ast.Ident); !ok {
				return true
			}
		}
		if _, isMap := literal.Type.(*ast.MapType); isMap {
			return true
		}
		at := fset.Position(literal.Lbrace)
		begin := map[int]int{at.Line: 1} // how many fields, and whether the literal itself, begin on a line
		for _, field := range literal.Elts {
			begin[fset.Position(field.Pos()).Line]++
		}
		for line, n := range begin {
			if width := len([]rune(strings.ReplaceAll(lines[line-1], "\t", "    "))); n > 1 && width > mostColumns {
				found = append(found, fmt.Sprintf("%s: a struct literal has a line of %d columns: it must have one field a line beyond %d", at, width, mostColumns))
				break
			}
		}
		return true
	})
	return found
}
