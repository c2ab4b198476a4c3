package lint

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are the Markdown files of the project, by path from its root.
func documents(t *testing.T) []string {
	t.Helper()
	var docs []string
	for _, file := range texts(t) {
		if strings.HasSuffix(file, ".md") {
			docs = append(docs, file)
		}
	}
	for _, want := range []string{"README.md", "CHANGELOG.md", "docs/README.md", "docs/guides/webhooks.md", "contrib/otel/README.md"} {
		if !slices.Contains(docs, want) {
			t.Fatalf("%s is not among the documents: the search has gone blind", want)
		}
	}
	return docs
}

// texts are the files that people read and write: code, documents, configuration.
func texts(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && d.Name() != ".ci" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		switch filepath.Ext(file) {
		case ".go", ".md", ".sql", ".yaml", ".yml", ".json", ".sh", "":
		default:
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// prose is a document without its blocks of code.
func prose(text string) string {
	return regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```").ReplaceAllString(text, "")
}

var (
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names under which GitHub shows the headings of a document.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(text), -1) {
		title := linked.ReplaceAllString(m[1], "$1")
		found[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(title), ""), " ", "-")] = true
	}
	return found
}

var link = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)\s]*))?\)`)

// broken says which relative links of a document lead nowhere.
func broken(t *testing.T, doc, text string) (links []string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(prose(text), -1) {
		to, anchor := m[1], m[2]
		if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
			continue
		}
		target, its := doc, text
		if to != "" {
			target = path.Join(path.Dir(doc), to)
			info, err := os.Stat(filepath.Join(root, target))
			if err != nil {
				links = append(links, m[0])
				continue
			}
			if anchor == "" || info.IsDir() {
				continue
			}
			its = read(t, target)
		}
		if anchor != "" && !anchors(its)[anchor] {
			links = append(links, m[0])
		}
	}
	return links
}

func TestDocs_EveryLinkOfTheDocumentsLeadsSomewhere(t *testing.T) {
	for _, doc := range documents(t) {
		for _, l := range broken(t, doc, read(t, doc)) {
			t.Errorf("%s has the link %s, which leads nowhere", doc, l)
		}
	}
}

func TestDocs_ADeadLinkIsFound(t *testing.T) {
	text := "# Title\n## The `code`, and [more](README.md)\n[a](#the-code-and-more) [b](#title) [c](docs/operations.md#roles) [d](docs) [e](https://example.com/x#y)\n"
	if found := broken(t, "README.md", text); len(found) != 0 {
		t.Errorf("it takes %q for dead", found)
	}
	for _, l := range []string{"[a](#nowhere)", "[a](nowhere.md)", "[a](docs/operations.md#nowhere)", "[a](nowhere.md#title)"} {
		if found := broken(t, "README.md", text+l); len(found) != 1 {
			t.Errorf("in %s it finds %q", l, found)
		}
	}
}

// named is a path of the documentation as code and prose name it: docs/operations.md, or docs/guarantees.md#g1.
var namedDoc = regexp.MustCompile(`(\S*?)\b(docs/[\w./-]*\w\.(?:md|yaml|json))(?:#([\w-]+))?`)

func TestDocs_EveryPathUnderDocsThatIsNamedAnywhereExists(t *testing.T) {
	n := 0
	for _, file := range texts(t) {
		for _, m := range namedDoc.FindAllStringSubmatch(read(t, file), -1) {
			if strings.Contains(m[1], "://") || file == "rig/internal/lint/docs_test.go" {
				continue
			}
			n++
			text, err := os.ReadFile(filepath.Join(root, m[2]))
			if err != nil {
				t.Errorf("%s names %s, which does not exist", file, m[2])
			} else if m[3] != "" && !anchors(string(text))[m[3]] {
				t.Errorf("%s names %s#%s: there is no such heading", file, m[2], m[3])
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d paths were found: the search has gone blind", n)
	}
}

// Every page is one click away from the index: from that of users, or that of contributors.
func TestDocs_TheIndexesOfTheDocumentationListEveryPage(t *testing.T) {
	for _, index := range []string{"docs/README.md", "docs/project/README.md"} {
		listed := map[string]bool{index: true}
		for _, m := range link.FindAllStringSubmatch(read(t, index), -1) {
			listed[path.Join(path.Dir(index), m[1])] = true
		}
		pages := 0
		for _, doc := range documents(t) {
			if strings.HasPrefix(doc, "docs/") && strings.HasPrefix(doc, "docs/project/") == (index == "docs/project/README.md") {
				if pages++; !listed[doc] {
					t.Errorf("%s does not list %s", index, doc)
				}
			}
		}
		if pages < 10 {
			t.Errorf("%s is to list only %d pages: the search has gone blind", index, pages)
		}
	}
}

// entriesWithoutSymptom are the headings of the runbooks, below the parts of the page, that an index does not link.
func entriesWithoutSymptom(runbooks, symptoms string) (missing []string) {
	linked := map[string]bool{}
	for _, m := range link.FindAllStringSubmatch(prose(symptoms), -1) {
		if m[1] == "runbooks.md" {
			linked[m[2]] = true
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^### .+$`).FindAllString(prose(runbooks), -1) {
		for anchor := range anchors(m) {
			if !linked[anchor] {
				missing = append(missing, strings.TrimPrefix(m, "### "))
			}
		}
	}
	return missing
}

// Who sees something and knows no name for it begins with the symptoms.
func TestDocs_TheSymptomsLeadToEveryRunbook(t *testing.T) {
	runbooks := read(t, "docs/operations/runbooks.md")
	if all := entriesWithoutSymptom(runbooks, ""); len(all) < 30 {
		t.Errorf("only %d runbooks were found: the search has gone blind", len(all))
	}
	for _, entry := range entriesWithoutSymptom(runbooks, read(t, "docs/operations/symptoms.md")) {
		t.Errorf("docs/operations/symptoms.md does not lead to the runbook %q: add what a person sees of it", entry)
	}
}

func TestDocs_ARunbookWithoutASymptomIsFound(t *testing.T) {
	runbooks := "# Runbooks\n## Part\n### No relay runs\n### The `log` grows\n"
	for symptoms, want := range map[string]int{
		"[a](runbooks.md#no-relay-runs) [b](runbooks.md#the-log-grows)": 0,
		"[a](runbooks.md#no-relay-runs) [b](relays.md#the-log-grows)":   1,
		"[a](runbooks.md)": 2,
	} {
		if found := entriesWithoutSymptom(runbooks, symptoms); len(found) != want {
			t.Errorf("in %s it misses %q, want %d", symptoms, found, want)
		}
	}
}

func TestDocs_ThePageOfTheSchemaListsAllOfIt(t *testing.T) {
	page := read(t, "docs/reference/schema.md")
	created := regexp.MustCompile(`(?m)^create (?:unlogged )?(?:or replace )?(?:table|view|function) holdfast\.(\w+)`).FindAllStringSubmatch(read(t, "schema.sql"), -1)
	if len(created) < 30 {
		t.Errorf("schema.sql creates only %d things: the search has gone blind", len(created))
	}
	for _, m := range created {
		if name := m[1]; !strings.Contains(page, "`"+name+"`") && !strings.HasPrefix(name, "event_") {
			t.Errorf("docs/reference/schema.md leaves out %s", name)
		}
	}
}

// testCommand is a go test that a document names: what stands before -run, with the packages, and the pattern.
var testCommand = regexp.MustCompile("go test ([^`\n]*?)-run +('[^']*'|[^ `\n]+)")

func TestDocs_EveryTestCommandOfTheDocumentsRunsATest(t *testing.T) {
	tests := map[string][]string{} // by directory
	definition := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example|Benchmark)\w*)\(`)
	for _, file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range definition.FindAllStringSubmatch(read(t, file), -1) {
				tests[path.Dir(file)] = append(tests[path.Dir(file)], m[1])
			}
		}
	}
	commands := 0
	for _, doc := range documents(t) {
		for _, m := range testCommand.FindAllStringSubmatch(strings.ReplaceAll(read(t, doc), "\\|", "|"), -1) {
			pattern, _, _ := strings.Cut(strings.Trim(m[2], "'"), "/")
			if pattern == "^$" || pattern == "xxx" { // only benchmarks
				continue
			}
			commands++
			matches, err := regexp.Compile(pattern)
			if err != nil {
				t.Errorf("%s: %s: %v", doc, m[0], err)
				continue
			}
			for _, dir := range strings.Fields(m[1]) {
				if dir != "." && !strings.HasPrefix(dir, "./") || strings.Contains(dir, "...") {
					continue
				}
				if !slices.ContainsFunc(tests[path.Clean(dir)], matches.MatchString) {
					t.Errorf("%s says %q: %s has no such test", doc, m[0], dir)
				}
			}
			for _, one := range strings.Split(pattern, "|") {
				if strings.ContainsAny(one, "()[") {
					continue
				}
				if found := slices.ContainsFunc(strings.Fields(m[1]), func(dir string) bool {
					return slices.ContainsFunc(tests[path.Clean(dir)], regexp.MustCompile(one).MatchString)
				}); !found && strings.Contains(m[1], "./") {
					t.Errorf("%s says %q: nothing is called %s", doc, m[0], one)
				}
			}
		}
	}
	if commands < 30 {
		t.Errorf("only %d commands were found: the search has gone blind", commands)
	}
}
