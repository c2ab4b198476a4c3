// Package lint holds the project to what its documents say. It has no code but tests.
package lint

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../../.."
	module = "github.com/holdfast-go/holdfast"
)

// forTests are packages for the tests of our users: they may link package testing, and nothing else that is for tests.
var forTests = map[string]bool{"holdfasttest": true, "relay/publishertest": true, "inbox/sourcetest": true}

// internals says which internal packages the library may import: the others are for tests, examples and the benchmark.
var internals = map[string]bool{"internal/wire": true, "internal/sqlschema": true, "internal/lane": true, "internal/murmur2": true, "internal/partitionqueue": true, "internal/hook": true, "internal/handlertx": true, "internal/failpoint": true, "internal/cutoff": true, "internal/rights": true, "internal/correlation": true, "internal/private": true, "internal/quiet": true, "internal/backfill": true, "internal/nodes": true, "internal/foreign": true, "internal/plain": true, "internal/poolneed": true, "internal/probe": true, "internal/process": true, "internal/waitroom": true, "internal/manual": true, "internal/state": true, "internal/terminal": true, "internal/backlog": true, "internal/kafkafault": true, "internal/catalog": true, "internal/settled": true, "internal/steps": true}

// sources yields the Go files of the module, by path from its root, tests included.
func sources(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// modules are the directories of the module and of those below it, which have dependencies of their own, from its root.
func modules(t *testing.T) []string {
	t.Helper()
	dirs := []string{""}
	for _, m := range regexp.MustCompile(`(?m)^\t\./(\S+)$`).FindAllStringSubmatch(read(t, "go.work"), -1) {
		dirs = append(dirs, m[1])
	}
	if len(dirs) < 8 {
		t.Fatalf("go.work names only %v: the search has gone blind", dirs)
	}
	return dirs
}

// moduleOf is the directory of the module that a package belongs to.
func moduleOf(t *testing.T, pkg string) (dir string) {
	t.Helper()
	for _, m := range modules(t) {
		if (pkg == m || strings.HasPrefix(pkg, m+"/")) && len(m) > len(dir) {
			dir = m
		}
	}
	return dir
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, spec := range parsed.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestLint_NothingOfTestingIsLinkedIntoTheLibrary(t *testing.T) {
	for _, pkg := range library(t) {
		for _, dep := range linksOf(t, pkg) {
			if dep == "testing" && !forTests[pkg] || strings.Contains(dep, "testify") || strings.Contains(dep, "testcontainers") || strings.Contains(dep, "kfake") || strings.Contains(dep, "embedded-postgres") || strings.Contains(dep, "opentelemetry") && pkg != "contrib/otel" {
				t.Errorf("package %q links %s into its users' programs", pkg, dep)
			}
		}
	}
}

func goList(t *testing.T, pkg string) []string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", strings.TrimSuffix(module+"/"+pkg, "/"))
	list.Dir = filepath.Join(root, moduleOf(t, pkg))
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", pkg, err, out)
	}
	return strings.Fields(string(out))
}

var testName = regexp.MustCompile("`(Test\\w+)`")

func TestLint_EveryTestThatTheDocumentsNameExists(t *testing.T) {
	defined := map[string]bool{}
	definition := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+|Example\w*)\(`)
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			defined[m[1]] = true
		}
	}
	for _, doc := range documents(t) {
		if doc == "CONVENTIONS.md" {
			continue // it names tests of other projects as examples
		}
		text := read(t, doc)
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !defined[m[1]] {
				t.Errorf("%s names %s, which does not exist", doc, m[1])
			}
		}
	}
}

func TestLint_EveryGuaranteeNamesItsCodeAndATest(t *testing.T) {
	text := read(t, "docs/guarantees.md")
	sections := regexp.MustCompile(`(?m)^## (G\d+) `).FindAllStringSubmatchIndex(text, -1)
	if len(sections) < 12 {
		t.Fatalf("docs/guarantees.md has %d numbered guarantees, want G1 to G12", len(sections))
	}
	for i, s := range sections {
		end := len(text)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		name, body := text[s[2]:s[3]], text[s[0]:end]
		if !testName.MatchString(body) {
			t.Errorf("%s names no test", name)
		}
		if !regexp.MustCompile("`[a-z/]+\\.(go|sql)`").MatchString(body) {
			t.Errorf("%s names no file that keeps it", name)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// snippet is a piece of a Go file between "// snippet: name" and "// end snippet".
var snippet = regexp.MustCompile(`(?ms)^[ \t]*// snippet: (\S+)\n(.*?)^[ \t]*// end snippet`)

func TestLint_TheSnippetsOfTheREADMEsAndTheDocsAreCodeOfTheExamples(t *testing.T) {
	for _, m := range modules(t) {
		least, examples := map[string]int{"README.md": 1, "docs/guides/webhooks.md": 1}, regexp.MustCompile(`^(examples/|contrib/\w+/\w*example\w*_test\.go$)`) // producer, relay and consumer in one; receiver
		if m != "" {
			if !strings.HasPrefix(m, "contrib/") { // nobody imports it
				continue
			}
			least, examples = map[string]int{m + "/README.md": 1}, regexp.MustCompile("^"+regexp.QuoteMeta(m)+`/\w*example\w*_test\.go$`)
		}
		code := map[string]bool{}
		for _, file := range sources(t) {
			if !examples.MatchString(file) {
				continue
			}
			for _, m := range snippet.FindAllStringSubmatch(read(t, file), -1) {
				code[dedent(m[2])] = true
			}
		}
		for _, doc := range documents(t) {
			module, found := strings.CutSuffix(doc, "/README.md")
			if found && module != m || !found && m != "" {
				continue
			}
			blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(read(t, doc), -1)
			if len(blocks) < least[doc] {
				t.Errorf("%s shows %d pieces of code, want %d or more", doc, len(blocks), least[doc])
			}
			for _, b := range blocks {
				if !code[dedent(b[1])] {
					t.Errorf("this code of %s is no snippet of an example:\n%s", doc, b[1])
				}
			}
		}
	}
}

func TestLint_EveryExampleClosesThePublisherThatItMakes(t *testing.T) {
	made := 0
	for _, file := range append(sources(t), "README.md") {
		if !strings.HasPrefix(file, "examples/") && file != "README.md" || strings.HasSuffix(file, "_test.go") {
			continue
		}
		text := read(t, file)
		n := strings.Count(text, "kafkago.NewPublisher(")
		closed := strings.Count(text, "publisher.Close()") + strings.Count(text, "CloseFuncs: []func(){publisher.Close")
		if made += n; n != closed {
			t.Errorf("%s makes %d publishers and closes another number: a copy of it leaks its connections to the brokers", file, n)
		}
	}
	if made < 4 {
		t.Errorf("only %d publishers were found: the search has gone blind", made)
	}
}

// dedent takes the common indentation away, so that code may stand deeper in a function than in a document.
func dedent(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	common := -1
	for _, line := range lines {
		if trimmed := strings.TrimLeft(line, "\t"); trimmed != "" && (common < 0 || len(line)-len(trimmed) < common) {
			common = len(line) - len(trimmed)
		}
	}
	for i, line := range lines {
		if len(line) >= common {
			lines[i] = line[common:]
		}
		lines[i] = strings.TrimRight(lines[i], " \t")
	}
	return strings.Join(lines, "\n")
}

func TestLint_EveryStatementHasANameOfItsOwn(t *testing.T) {
	names := map[string]string{}
	statement := regexp.MustCompile("`-- ([a-z_]+\\.[a-z_]+)\n")
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "rig/bench/") || strings.HasPrefix(file, "examples/") {
			continue
		}
		for _, m := range statement.FindAllStringSubmatch(read(t, file), -1) {
			if other, taken := names[m[1]]; taken {
				t.Errorf("%s and %s both name a statement %s: it could not be told apart in pg_stat_statements", file, other, m[1])
			}
			names[m[1]] = file
		}
	}
	if len(names) < 20 {
		t.Errorf("only %d named statements were found: the pattern has gone blind", len(names))
	}
}

// skipFile is the one place that skips a test. It does so with a reason, and not where REQUIRE_SERVICES=1.
const skipFile = "internal/test/skip/skip.go"

func TestLint_SkipsGoThroughTheHelpersThatCanFailThem(t *testing.T) {
	for _, file := range sources(t) {
		found := skips(t, file, read(t, file))
		if file == skipFile {
			if len(found) == 0 {
				t.Errorf("%s skips nothing: the search has gone blind", file)
			}
			continue
		}
		for _, at := range found {
			t.Errorf("%s skips a test that REQUIRE_SERVICES=1 must not let pass: call skip.Without or skip.InShort of %s", at, skipFile)
		}
	}
}

func TestLint_NoSkipEscapesTheSearch(t *testing.T) {
	for _, body := range []string{
		`t.Skip("slow")`,
		`t.SkipNow()`,
		`if os.Getenv("REQUIRE_SERVICES") != "1" { t.Skipf("needs %s", "more") }`,
		`if testing.Short() { t.Skip("slow") }`,
		`rapid.Check(t, func(r *rapid.T) { r.Skip("unwanted") })`,
		`s := bundle{T: t}; s.SkipNow()`,
		`end := t.Skip; end("slow")`,
		`(testing.TB).SkipNow(t)`,
	} {
		if found := skips(t, "injected_test.go", "package p\nfunc TestX(t *testing.T) {\n"+body+"\n}"); len(found) != 1 {
			t.Errorf("in %s it finds %d skips, want 1", body, len(found))
		}
	}
	if found := skips(t, "injected_test.go", "package p\n// t.Skip()\nfunc (v *verdict) SkipNow() { skip.InShort(v, \"t.Skip()\") }"); len(found) != 0 {
		t.Errorf("it takes %v for skips", found)
	}
}

// skips says where a file calls, or hands on, one of the methods by which a test skips itself, of whatever type.
func skips(t *testing.T, file, text string) (found []string) {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if method, ok := n.(*ast.SelectorExpr); ok {
			switch method.Sel.Name {
			case "Skip", "Skipf", "SkipNow":
				found = append(found, files.Position(method.Sel.Pos()).String())
			}
		}
		return true
	})
	return found
}

func TestLint_TheModulesAskForGo125AndNoMore(t *testing.T) {
	for _, m := range modules(t) {
		out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, m, "go.mod")).Output()
		if err != nil {
			t.Fatal(err)
		}
		var mod struct{ Go, Toolchain string }
		if err := json.Unmarshal(out, &mod); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(mod.Go, "1.25") || mod.Toolchain != "" {
			t.Errorf("%s asks for go %s and toolchain %q: users on Go 1.25 could not build with it", filepath.ToSlash(filepath.Join(m, "go.mod")), mod.Go, mod.Toolchain)
		}
	}
}
