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

// logLine is a call by which something is logged: what it says, at which level as the page names it, and where the call is. A message
// that is no constant is "", and a level that is chosen when it runs is "by result".
type logLine struct{ message, level, at string }

// logged returns what a file logs so.
func logged(t *testing.T, file, text string) (found []logLine) {
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
		found = append(found, logLine{message, levelOf(call, method.Sel.Name), files.Position(call.Pos()).String()})
		return true
	})
	return found
}

// levelOf is the level at which a method logs.
func levelOf(call *ast.CallExpr, method string) string {
	switch method {
	case "Warn", "WarnContext":
		return "warn"
	case "Error", "ErrorContext":
		return "error"
	}
	if constant, ok := call.Args[1].(*ast.SelectorExpr); ok {
		if level, ok := strings.CutPrefix(constant.Sel.Name, "Level"); ok {
			return strings.ToLower(level)
		}
	}
	return "by result"
}

func TestLogged_EveryWarningThatIsLoggedIsExplained(t *testing.T) {
	page := read(t, "docs/operations/logs.md")
	rows, said := map[string][]string{}, map[string]bool{} // the levels of a message, and whether somebody logs it
	for _, m := range regexp.MustCompile(`(?m)^\| (.+?) \| (.+?) \| `).FindAllStringSubmatch(page, -1) {
		if m[1] != "message" {
			rows[m[1]] = append(rows[m[1]], m[2])
		}
	}
	messages, drawn := 0, library(t)
	for _, file := range sources(t) {
		pkg := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), ".")
		if !slices.Contains(drawn, pkg) && !internals[pkg] || forTests[pkg] || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, line := range logged(t, file, read(t, file)) {
			messages++
			levels, ok := rows[line.message]
			if !ok {
				t.Errorf("%s logs %q: no row of docs/operations/logs.md begins with it, so nobody knows what to do", line.at, line.message)
			}
			for _, level := range levels {
				if level != line.level {
					t.Errorf("%s logs %q at the level %q, and docs/operations/logs.md says %q", line.at, line.message, line.level, level)
				}
			}
			said[line.message] = true
		}
	}
	if messages < 25 {
		t.Errorf("only %d messages were found: the search has gone blind", messages)
	}
	for message := range rows {
		if !said[message] {
			t.Errorf("docs/operations/logs.md explains %q, which nobody logs", message)
		}
	}
}

func TestLogged_NoMessageEscapesTheSearch(t *testing.T) {
	for body, want := range map[string]logLine{
		`in.c.Logger.Warn("a", "error", err)`:                    {message: "a", level: "warn"},
		`log.ErrorContext(ctx, "a")`:                             {message: "a", level: "error"},
		`slog.Default().Error("a", append(in.attrs(e), "x")...)`: {message: "a", level: "error"},
		`log.Log(req.Context(), level, "a", attributes...)`:      {message: "a", level: "by result"},
		`log.LogAttrs(ctx, slog.LevelWarn, "a")`:                 {message: "a", level: "warn"},
		`log.Warn(text)`:                                         {level: "warn"},
	} {
		found := logged(t, "injected.go", "package p\nfunc f() {\n"+body+"\n}")
		for i := range found {
			found[i].at = ""
		}
		if !slices.Equal(found, []logLine{want}) {
			t.Errorf("in %s it finds %q, want %q", body, found, want)
		}
	}
	if found := logged(t, "injected.go", "package p\nimport \"github.com/segmentio/kafka-go\"\nfunc f() { _, _ = err.Error(), kafka.Error(1); log.Info(\"a\"); log.Debug(\"b\") }"); len(found) != 0 {
		t.Errorf("it takes %q for warnings", found)
	}
}
