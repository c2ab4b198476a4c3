package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The requirement documents are not part of the repository. What is drawn from them is in testdata, word for word, and these
// tests hold the pages about them to it.

// drawn are the lines of a file of testdata: document, kind, words.
func drawn(t *testing.T, file string) (lines [][3]string) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.SplitN(line, " | ", 3)
		if len(parts) != 3 {
			t.Fatalf("%s: %q is not document, kind and words", file, line)
		}
		lines = append(lines, [3]string(parts))
	}
	return lines
}

// rowsOf are the cells of each row of the tables of a text.
func rowsOf(text string) (rows [][]string) {
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " |")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// section is the part of a document below a heading that begins so, up to the next heading of its level or a higher one.
func section(t *testing.T, text, title string) string {
	t.Helper()
	at := strings.Index(text, "\n"+title)
	if at < 0 {
		t.Fatalf("there is no heading %q", title)
	}
	rest := text[at+1+len(title):]
	level, _, _ := strings.Cut(title, " ")
	for _, shorter := range []string{"\n# ", "\n## ", "\n### "} {
		if len(shorter)-2 > len(level) {
			break
		}
		if end := strings.Index(rest, shorter); end >= 0 {
			rest = rest[:end]
		}
	}
	return rest
}

// definedTests are the names of all tests of the repository.
func definedTests(t *testing.T) map[string]bool {
	t.Helper()
	defined := map[string]bool{}
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				defined[f.Name.Name] = true
			}
		}
	}
	return defined
}

func TestRequirements_EveryRequirementNamesTestsThatExist(t *testing.T) {
	page, defined := read(t, "docs/project/requirements.md"), definedTests(t)
	said := map[string]map[string]bool{}
	for _, document := range []string{"000", "001", "002", "003", "004"} {
		said[document] = map[string]bool{}
		for _, row := range rowsOf(section(t, page, "## "+document+":")) {
			if row[0] == "entry" {
				continue
			}
			if said[document][row[0]] {
				t.Errorf("document %s: %q has two rows", document, row[0])
			}
			said[document][row[0]] = true
			if len(row) != 3 || row[1] == "" {
				t.Errorf("document %s: the row of %q does not say what is done about it", document, row[0])
				continue
			}
			named := testName.FindAllStringSubmatch(row[2], -1)
			if len(named) == 0 {
				t.Errorf("document %s: %q names no test", document, row[0])
			}
			for _, m := range named {
				if !defined[m[1]] {
					t.Errorf("document %s: %q names %s, which does not exist", document, row[0], m[1])
				}
			}
		}
	}
	n := 0
	for _, entry := range drawn(t, "requirements.txt") {
		n++
		if !said[entry[0]][entry[2]] {
			t.Errorf("docs/project/requirements.md has no row of document %s, %s: %s", entry[0], entry[1], entry[2])
		}
		delete(said[entry[0]], entry[2])
	}
	for document, rest := range said {
		for words := range rest {
			t.Errorf("docs/project/requirements.md has %q, which is not drawn from document %s", words, document)
		}
	}
	if n < 110 {
		t.Errorf("only %d entries were found: the search has gone blind", n)
	}
}

// The finer rows: R1 to R49, C1 to C10 and W1 to W25.
func TestRequirements_NoRowOfTheFinerRequirementsIsMissing(t *testing.T) {
	defined := definedTests(t)
	for _, page := range []struct {
		file, section string
		rows          map[string]int
	}{
		{"docs/project/idempotency.md", "## Rows and tests", map[string]int{"R": 49, "C": 10}},
		{"docs/project/webhook-rules.md", "# Webhook rules", map[string]int{"W": 25}},
	} {
		said := map[string]bool{}
		for _, row := range rowsOf(section(t, "\n"+read(t, page.file), page.section)) {
			if !regexp.MustCompile(`^[RCW]\d`).MatchString(row[0]) {
				continue
			}
			for _, number := range strings.Split(row[0], ", ") {
				said[number] = true
			}
			named := testName.FindAllStringSubmatch(row[len(row)-1], -1)
			if len(named) == 0 {
				t.Errorf("%s: %s names no test", page.file, row[0])
			}
			for _, m := range named {
				if !defined[m[1]] {
					t.Errorf("%s: %s names %s, which does not exist", page.file, row[0], m[1])
				}
			}
		}
		for letter, most := range page.rows {
			for n := 1; n <= most; n++ {
				if number := letter + strconv.Itoa(n); !said[number] {
					t.Errorf("%s has no row %s", page.file, number)
				}
			}
		}
	}
}

// The matrix of failures: what a reader looks for has a row, and each row has effect, answer, next try and a test.
func TestRequirements_TheFailureMatrixHasEveryRowAndNamesItsTest(t *testing.T) {
	matrix, defined := section(t, read(t, "docs/project/idempotency.md"), "## When something fails"), definedTests(t)
	var events []string
	for _, row := range rowsOf(matrix) {
		if row[0] == "what happens" {
			continue
		}
		events = append(events, row[0])
		if len(row) != 5 || slices.Contains(row, "") {
			t.Errorf("the row %q has an empty cell", row[0])
			continue
		}
		named := testName.FindAllStringSubmatch(row[4], -1)
		if len(named) == 0 {
			t.Errorf("the row %q names no test", row[0])
		}
		for _, m := range named {
			if !defined[m[1]] {
				t.Errorf("the row %q names %s, which does not exist", row[0], m[1])
			}
		}
	}
	all := strings.Join(events, "\n")
	for _, want := range []string{
		"the answer is lost", "the client goes away", "5xx", "402", "4xx that is not stored", "writes no answer", "writes the error outside",
		"COMMIT is refused", "reply to COMMIT is lost", "cannot be asked", "backend dies", "process ends at any point before", "process ends after",
		"two at once", "database is away", "damaged", "too long to keep", "expired", "lease is lost", "used all its attempts", "another request",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no row of the failure matrix is about %q", want)
		}
	}
}

// Where the documents ask for something in writing.
func TestRequirements_ThePagesSayWhatTheDocumentsAskThemTo(t *testing.T) {
	for _, want := range []struct {
		file, section string
		words         []string
	}{
		{"docs/project/idempotency.md", "## In short", []string{"**Key source.**", "**Store.**", "Postgres", "Redis", "**TTL.**", "24 hours", "**Replay.**", "same status", "**Claim and commit.**", "one transaction"}},
		{"docs/project/idempotency.md", "## For each operation", []string{"`POST /payments`", "`POST /payments/{id}/void`", "`POST /refunds`", "webhook", "TTL", "while it runs", "after success", "after a failure"}},
		{"docs/operations/idempotency.md", "## What a failure leaves", []string{"the answer arrives", "the answer is lost", "the effect is there", "the effect is not there"}},
		{"docs/guides/idempotent-requests.md", "## How long", []string{"30 d", "7 d", "24 h", "`Guard.Run` cleans up"}},
	} {
		text := strings.Join(strings.Fields(section(t, read(t, want.file), want.section)), " ")
		for _, words := range want.words {
			if !strings.Contains(text, words) {
				t.Errorf("%s, %s does not say %q", want.file, want.section, words)
			}
		}
	}
}

// Rows that others insert or remove meanwhile would shift a page that begins after a number of rows.
func TestRequirements_NoStatementPagesByOffset(t *testing.T) {
	paging := regexp.MustCompile(`(?i)\boffset\s+\$\d`)
	if !paging.MatchString("select 1 limit 10 offset $2") || paging.MatchString(`"offset" >= $1 and partition = $2 offset 0`) {
		t.Fatal("the search has gone blind")
	}
	files := 0
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "rig/") {
			continue
		}
		files++
		if m := paging.FindString(read(t, file)); m != "" {
			t.Errorf("%s pages by %q", file, m)
		}
	}
	if files < 200 {
		t.Errorf("only %d files were read", files)
	}
}

// known is what a name on docs/reference/requirement-names.md may point at: tables and columns of the schema, exported names of
// packages with their fields and methods, texts of the code such as headers and metrics, and files.
func known(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^column (\w+)\.(\w+): `).FindAllStringSubmatch(read(t, "internal/catalog/catalog.txt"), -1) {
		found["holdfast."+m[1]], found["holdfast."+m[1]+"."+m[2]] = true, true
	}
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "rig/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range exported(parsed) {
			found[parsed.Name.Name+"."+name] = true
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					found[text] = true
				}
			}
			if field, ok := n.(*ast.Field); ok && field.Tag != nil {
				for _, m := range regexp.MustCompile(`json:"(\w+)`).FindAllStringSubmatch(field.Tag.Value, -1) {
					found[m[1]] = true
				}
			}
			return true
		})
	}
	return found
}

// exported are the exported names of a file: T, T.Field and T.Method.
func exported(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if id, ok := of.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			names = append(names, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						names = append(names, id.Name)
					}
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
					if of, ok := spec.Type.(*ast.StructType); ok {
						for _, field := range of.Fields.List {
							for _, id := range field.Names {
								names = append(names, spec.Name.Name+"."+id.Name)
							}
						}
					}
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return !ast.IsExported(name) })
}

var quoted = regexp.MustCompile("`([^`]+)`")

func TestRequirements_EveryNameOfTheRequirementsHasARow(t *testing.T) {
	exists := known(t)
	said := map[string]string{} // the documents, by name
	for _, row := range rowsOf(read(t, "docs/reference/requirement-names.md")) {
		if row[0] == "name" {
			continue
		}
		if len(row) != 4 {
			t.Errorf("the row %q has %d cells", row[0], len(row))
			continue
		}
		name := quoted.FindStringSubmatch(row[0])
		if name == nil {
			t.Errorf("the row %q names nothing", row[0])
			continue
		}
		said[name[1]] += row[1] + " "
		ours := quoted.FindAllStringSubmatch(row[2], -1)
		if len(ours) == 0 && (row[2] != "none" || row[3] == "") {
			t.Errorf("%s has no name here, and no reason", name[1])
		}
		for _, m := range ours {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil && !exists[m[1]] {
				t.Errorf("%s is said to be %s, which does not exist", name[1], m[1])
			}
		}
	}
	lines := drawn(t, "requirement_names.txt")
	for _, line := range lines {
		if !strings.Contains(said[line[2]], line[0]) {
			t.Errorf("docs/reference/requirement-names.md has no row of document %s for the %s %s", line[0], line[1], line[2])
		}
	}
	if len(lines) < 100 {
		t.Errorf("only %d names were found: the search has gone blind", len(lines))
	}
}

func TestRequirements_ANameThatPointsNowhereIsFound(t *testing.T) {
	exists := known(t)
	for _, name := range []string{"holdfast.idempotency.fingerprint", "idempotency.Config.TTL", "idempotency.Guard.Route", "Idempotency-Status", "idempotent.replayed", "error_code"} {
		if !exists[name] {
			t.Errorf("%s is not found", name)
		}
	}
	for _, name := range []string{"holdfast.idempotency.payload_hash", "holdfast.inbox_event", "idempotency.Config.Ttl", "idempotent.replays"} {
		if exists[name] {
			t.Errorf("%s is found", name)
		}
	}
}
