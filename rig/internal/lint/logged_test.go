package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logCalls are the methods of a slog.Logger by which something is said that a person may have to act on, and which of
// their arguments is the message. Log chooses its level when it runs, so it may be one of those.
var logCalls = map[string]int{"Warn": 0, "Error": 0, "WarnContext": 1, "ErrorContext": 1, "Log": 2, "LogAttrs": 2}

// logged returns the messages of a file that are logged so, each with where that is. A message that is no constant is "".
func logged(t *testing.T, file, text string) map[string]string {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	for _, spec := range parsed.Imports {
		packages[strings.Trim(path.Base(spec.Path.Value), `"`)] = true
	}
	packages["kafka"] = packages["kafka"] || packages["kafka-go"]
	delete(packages, "slog")
	found := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		at, ok := logCalls[method.Sel.Name]
		if !ok || len(call.Args) <= at { // the Error() of an error has no argument
			return true
		}
		if of, ok := method.X.(*ast.Ident); ok && packages[of.Name] { // kafka.Error(1) is no call of a logger
			return true
		}
		message := ""
		if lit, ok := call.Args[at].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if message, err = strconv.Unquote(lit.Value); err != nil {
				t.Fatal(err)
			}
		}
		found[message] = files.Position(call.Pos()).String()
		return true
	})
	return found
}

func TestLogged_EveryWarningThatIsLoggedIsExplained(t *testing.T) {
	page := read(t, "docs/operations/logs.md")
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (.+?) \| `).FindAllStringSubmatch(page, -1) {
		if m[1] != "message" {
			rows[m[1]] = false
		}
	}
	messages, drawn := 0, library(t)
	for _, file := range sources(t) {
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), ".")
		if !slices.Contains(drawn, pkg) && !internals[pkg] || forTests[pkg] || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for message, at := range logged(t, file, read(t, file)) {
			messages++
			if _, ok := rows[message]; !ok {
				t.Errorf("%s logs %q: no row of docs/operations/logs.md begins with it, so nobody knows what to do", at, message)
			}
			rows[message] = true
		}
	}
	if messages < 25 {
		t.Errorf("only %d messages were found: the search has gone blind", messages)
	}
	for message, said := range rows {
		if !said {
			t.Errorf("docs/operations/logs.md explains %q, which nobody logs", message)
		}
	}
}

func TestLogged_NoMessageEscapesTheSearch(t *testing.T) {
	for body, want := range map[string]string{
		`in.c.Logger.Warn("a", "error", err)`:                    "a",
		`log.ErrorContext(ctx, "a")`:                             "a",
		`slog.Default().Error("a", append(in.attrs(e), "x")...)`: "a",
		`log.Log(req.Context(), level, "a", attributes...)`:      "a",
		`log.Warn(text)`: "",
	} {
		found := logged(t, "injected.go", "package p\nfunc f() {\n"+body+"\n}")
		if _, ok := found[want]; !ok || len(found) != 1 {
			t.Errorf("in %s it finds %q, want %q", body, found, want)
		}
	}
	if found := logged(t, "injected.go", "package p\nimport \"github.com/segmentio/kafka-go\"\nfunc f() { _, _ = err.Error(), kafka.Error(1); log.Info(\"a\"); log.Debug(\"b\") }"); len(found) != 0 {
		t.Errorf("it takes %q for warnings", found)
	}
}
