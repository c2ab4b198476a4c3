package lint

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the pages that are made of the code")

// configured are the structs by which users configure the library, in the order of the page.
var configured = regexp.MustCompile(`^(\w*Config|\w+Options|Connection|Route|Completion|Policy|Transport|Client|Idle|Filter)$`)

// ofPage are the packages that the page lists, in its order. The first is the module's own.
var ofPage = []string{"", "outbox", "relay", "inbox", "kafkago", "direct", "retry", "dlq", "waiting", "tenant", "idempotency", "webhook", "metrics", "holdfasttest", "contrib/redis", "contrib/franz", "contrib/nats", "contrib/schemaregistry"}

const configurationPage = "docs/reference/configuration.md"

func TestConfiguration_ThePageOfTheConfigurationIsThatOfTheCode(t *testing.T) {
	var page strings.Builder
	page.WriteString("# Configuration\n\nEvery field of every struct that configures holdfast, as its comment in the code says. The zero value of a field means its\n" +
		"default. `-1` means \"off\" or \"no limit\" where the field says so. Each `New` reports every problem at once, with field, value\nand rule.\n\n" +
		"`go test ./rig/internal/lint -run ThePageOfTheConfiguration -rewrite` writes this page.\n")
	fields := 0
	for _, pkg := range ofPage {
		text, n := configurationOf(t, pkg)
		page.WriteString(text)
		fields += n
	}
	if fields < 80 {
		t.Errorf("only %d fields were found: the search has gone blind", fields)
	}
	path := filepath.Join(root, configurationPage)
	if *rewrite {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != page.String() {
		t.Errorf("%s is not what the code says (%v): run go test ./rig/internal/lint -run ThePageOfTheConfiguration -rewrite", configurationPage, err)
	}
}

// configurationOf are the sections of one package's structs, and how many fields they list.
func configurationOf(t *testing.T, pkg string) (text string, fields int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	constants := map[string]string{}
	var structs []*ast.TypeSpec
	docs := map[string]string{}
	name := ""
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		name = file.Name.Name
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for i, value := range spec.Values {
						constants[spec.Names[i].Name] = source(t, files, value)
					}
				case *ast.TypeSpec:
					if _, ok := spec.Type.(*ast.StructType); ok && configured.MatchString(spec.Name.Name) {
						structs = append(structs, spec)
						docs[spec.Name.Name] = decl.Doc.Text()
					}
				}
			}
		}
	}
	slices.SortStableFunc(structs, func(a, b *ast.TypeSpec) int { return rank(a.Name.Name) - rank(b.Name.Name) })
	var page strings.Builder
	for _, s := range structs {
		var rows strings.Builder
		for _, f := range s.Type.(*ast.StructType).Fields.List {
			var names []string
			for _, n := range f.Names {
				if n.IsExported() {
					names = append(names, "`"+n.Name+"`")
				}
			}
			if len(names) == 0 {
				continue
			}
			what, standard := defaultOf(f.Doc.Text()+f.Comment.Text(), constants)
			fmt.Fprintf(&rows, "| %s | `%s` | %s | %s |\n", strings.Join(names, ", "), strings.ReplaceAll(source(t, files, f.Type), "|", `\|`), what, standard)
			fields += len(names)
		}
		if rows.Len() == 0 {
			continue
		}
		first, _, _ := strings.Cut(docs[s.Name.Name], "\n\n")
		fmt.Fprintf(&page, "\n## %s.%s\n\n%s\n\n| field | type | what it is | default |\n|---|---|---|---|\n%s", name, s.Name.Name, strings.TrimSpace(first), rows.String())
	}
	return page.String(), fields
}

// rank puts a package's Config first.
func rank(name string) int {
	if name == "Config" || name == "SchemaConfig" {
		return 0
	}
	return 1
}

var standards = regexp.MustCompile(`(?:^|([.:)"]) )Defaults? to ((?:[^.]|\.[^ ])+)\.?(?: |$)`)

// defaultOf takes what a comment says of the default out of it.
func defaultOf(comment string, constants map[string]string) (what, standard string) {
	what = strings.Join(strings.Fields(strings.ReplaceAll(comment, "|", `\|`)), " ")
	if m := standards.FindStringSubmatchIndex(what); m != nil {
		standard = regexp.MustCompile(`\bDefault\w+`).ReplaceAllStringFunc(what[m[4]:m[5]], func(name string) string {
			if value, ok := constants[name]; ok {
				return "`" + value + "`"
			}
			return name
		})
		what = strings.TrimSpace(what[:max(m[0], m[3])] + " " + what[m[1]:])
	}
	return what, standard
}

func TestConfiguration_ADefaultIsTakenOutOfItsComment(t *testing.T) {
	for comment, want := range map[string][2]string{
		"How long. Defaults to 5 s.":                                 {"How long.", "5 s"},
		"How long. Defaults to 0.5 s, or more. Between 1 and 2.":     {"How long. Between 1 and 2.", "0.5 s, or more"},
		"How long.\nDefaults to DefaultX.":                           {"How long.", "`30 * time.Second`"},
		"The largest. Required.":                                     {"The largest. Required.", ""},
		"PollMin and PollMax bound it. Default to 2 ms and\n100 ms.": {"PollMin and PollMax bound it.", "2 ms and 100 ms"},
	} {
		what, standard := defaultOf(comment, map[string]string{"DefaultX": "30 * time.Second"})
		if what != want[0] || standard != want[1] {
			t.Errorf("%q: got %q, %q", comment, what, standard)
		}
	}
}

func source(t *testing.T, files *token.FileSet, node ast.Node) string {
	t.Helper()
	var b bytes.Buffer
	if err := printer.Fprint(&b, files, node); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
