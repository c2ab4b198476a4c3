package lint

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// arrow is a line of doc.go's drawing: a package, in brackets what it is, and what it imports.
var arrow = regexp.MustCompile(`(?m)^//\t([\w/]+)(?: +\([^)]*\))? +-> +(\S.*)$`)

// arrows are the packages that doc.go draws, in its order, and what it says each imports, which may be nothing.
func arrows(text string) (drawn []string, imported map[string][]string) {
	imported = map[string][]string{}
	for _, m := range arrow.FindAllStringSubmatch(text, -1) {
		drawn = append(drawn, m[1])
		imported[m[1]] = []string{}
		if names := strings.TrimSpace(m[2]); names != "nothing" {
			imported[m[1]] = strings.Split(names, ", ")
		}
	}
	return drawn, imported
}

// library lists the packages of the library by their directories, "" for the one at the top: those that doc.go draws.
func library(t *testing.T) []string {
	t.Helper()
	drawn, _ := arrows(read(t, "doc.go"))
	if len(drawn) < 8 {
		t.Fatalf("doc.go draws only %d packages: the search has gone blind", len(drawn))
	}
	for i, pkg := range drawn {
		if pkg == "holdfast" {
			drawn[i] = ""
		}
	}
	return drawn
}

// undrawn are the directories whose packages no program of a user links: they are not of the library, or for its tests.
var undrawn = regexp.MustCompile(`^(cmd|examples|rig|internal)(/|$)|/internal/(redistest|simdb)$`)

// drawnName is a package's name in the drawing, by its import path: "" for internal packages and the standard library.
func drawnName(importPath string) string {
	if ours, ok := strings.CutPrefix(importPath, module); ok {
		switch ours = strings.TrimPrefix(ours, "/"); {
		case ours == "":
			return "holdfast"
		case strings.HasPrefix(ours, "internal/") || strings.Contains(ours, "/internal/"):
			return ""
		}
		return ours
	}
	domain, rest, _ := strings.Cut(importPath, "/")
	parts := strings.Split(rest, "/")
	switch {
	case !strings.Contains(domain, "."):
		return ""
	case domain == "golang.org":
		return path.Join(parts[:2]...)
	case domain == "go.opentelemetry.io":
		return "otel"
	case domain == "google.golang.org":
		return parts[0]
	}
	return parts[1] // github.com, the owner, and the repository
}

// mismatches compares the drawing in doc with the packages of files, which are given by their paths and imports.
func mismatches(doc string, files map[string][]string) []string {
	drawn, says := arrows(doc)
	does := map[string]map[string]string{} // by package and what it imports: the file
	for file, paths := range files {
		pkg := path.Dir(file)
		if undrawn.MatchString(pkg) {
			continue
		}
		pkg, _, _ = strings.Cut(pkg, "/internal/") // its inner rooms are part of a package
		if pkg == "." {
			pkg = "holdfast"
		}
		if does[pkg] == nil {
			does[pkg] = map[string]string{}
		}
		for _, p := range paths {
			if name := drawnName(p); name != "" && name != pkg {
				does[pkg][name] = file
			}
		}
	}
	var found []string
	for _, pkg := range slices.Sorted(maps.Keys(does)) {
		if says[pkg] == nil {
			found = append(found, "doc.go does not draw the package "+pkg+": give it a line, with all that it imports")
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(does[pkg])) {
			if !slices.Contains(says[pkg], name) {
				found = append(found, does[pkg][name]+" imports "+name+": doc.go draws no arrow from "+pkg+" to it")
			}
		}
	}
	for i, pkg := range drawn {
		if does[pkg] == nil {
			found = append(found, "doc.go draws "+pkg+", which is no package")
			continue
		}
		for _, name := range says[pkg] {
			if does[pkg][name] == "" {
				found = append(found, "doc.go draws an arrow from "+pkg+" to "+name+", which it does not import")
			}
			if slices.Contains(drawn[:i], name) {
				found = append(found, "doc.go draws an arrow from "+pkg+" up to "+name+": the lines are in the order of the arrows")
			}
		}
	}
	return found
}

func TestArrows_TheArrowsOfDocGoAreTheImports(t *testing.T) {
	files := map[string][]string{}
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			files[file] = imports(t, file)
		}
	}
	for _, m := range mismatches(read(t, "doc.go"), files) {
		t.Error(m)
	}
}

func TestArrows_AnArrowTooManyAndOneTooFewAreFound(t *testing.T) {
	doc := "//\tkafkago       ->  inbox, pgx\n//\tinbox (text)  ->  holdfast\n//\tholdfast      ->  pgx\n"
	good := map[string][]string{
		"kafkago/a.go": {"net", module + "/inbox"}, "kafkago/b.go": {"github.com/jackc/pgx/v5/pgconn", module + "/internal/wire"},
		"inbox/a.go": {module}, "event.go": {"github.com/jackc/pgx/v5"}, "rig/a.go": {"github.com/x/y"}, "inbox/internal/room/a.go": {module + "/internal/lane", module + "/inbox/internal/b", module},
		"internal/c/a.go": {"github.com/x/y"},
	}
	if found := mismatches(doc, good); len(found) > 0 {
		t.Errorf("in a drawing that is right: %q", found)
	}
	for want, change := range map[string]func(files map[string][]string) (doc string){
		"inbox/b.go imports relay: doc.go draws no arrow from inbox to it": func(files map[string][]string) string {
			files["inbox/b.go"] = []string{module + "/relay"}
			return doc
		},
		"inbox/internal/room/a.go imports y: doc.go draws no arrow from inbox to it": func(files map[string][]string) string {
			files["inbox/internal/room/a.go"] = append(files["inbox/internal/room/a.go"], "github.com/x/y")
			return doc
		},
		"event.go imports x/sync: doc.go draws no arrow from holdfast to it": func(files map[string][]string) string {
			files["event.go"] = append(files["event.go"], "golang.org/x/sync/errgroup")
			return doc
		},
		"doc.go draws an arrow from kafkago to pgx, which it does not import": func(files map[string][]string) string {
			delete(files, "kafkago/b.go")
			return doc
		},
		"doc.go does not draw the package dlq: give it a line, with all that it imports": func(files map[string][]string) string {
			files["dlq/a.go"] = nil
			return doc
		},
		"retry/a.go imports pgx: doc.go draws no arrow from retry to it": func(files map[string][]string) string {
			files["retry/a.go"] = []string{"github.com/jackc/pgx/v5"}
			return doc + "//\tretry         ->  nothing\n"
		},
		"doc.go draws webhook, which is no package": func(map[string][]string) string { return "//\twebhook  ->  inbox\n" + doc },
		"doc.go draws an arrow from inbox up to kafkago: the lines are in the order of the arrows": func(files map[string][]string) string {
			files["inbox/a.go"] = append(files["inbox/a.go"], module+"/kafkago")
			return strings.Replace(doc, "  ->  holdfast", "  ->  holdfast, kafkago", 1)
		},
	} {
		files := maps.Clone(good)
		if found := mismatches(change(files), files); !slices.Equal(found, []string{want}) {
			t.Errorf("it finds %q, want %q", found, want)
		}
	}
}

// internals are the internal packages that the library may import: the others are for tests, examples and the benchmark.
func TestArrows_TheLibraryLinksOnlyTheInternalPackagesThatAreForIt(t *testing.T) {
	unused := maps.Clone(internals)
	for _, file := range sources(t) {
		pkg := path.Dir(file)
		inside := internals[pkg]
		if strings.HasSuffix(file, "_test.go") || undrawn.MatchString(pkg) && !inside {
			continue
		}
		for _, p := range imports(t, file) {
			ours, _ := strings.CutPrefix(p, module+"/")
			if !strings.HasPrefix(ours, "internal/") {
				continue
			}
			if delete(unused, ours); !internals[ours] {
				t.Errorf("%s imports %s, which is for tests", file, ours)
			}
		}
	}
	for pkg := range unused {
		t.Errorf("nothing of the library imports %s: it is for tests, or not needed", pkg)
	}
}

// kafkaClient are the modules of Kafka clients (franz-go's client of schema registries is none), and kafkaPackage is the one that may link one, with what is below it and what
// is made for it.
var kafkaClient = regexp.MustCompile(`segmentio/kafka-go|twmb/franz-go($|/pkg/k)|IBM/sarama|confluent-kafka-go`)

const kafkaPackage = "kafkago"

var ofKafka = regexp.MustCompile(`^(kafkago(/.*)?|contrib/mskiam|contrib/franz)$`)

func TestArrows_NoPackageButKafkagoLinksAKafkaClient(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	for _, pkg := range library(t) {
		links := slices.ContainsFunc(linksOf(t, pkg), kafkaClient.MatchString)
		switch {
		case pkg == kafkaPackage && !links:
			t.Errorf("package %s links no Kafka client: the search has gone blind", pkg)
		case !ofKafka.MatchString(pkg) && links:
			t.Errorf("package %q links a Kafka client into its users' programs: reach Kafka through relay.Publisher and inbox.Source", pkg)
		}
	}
}

// goListed are what go list said, by package.
var goListed = map[string][]string{}

// linksOf are the packages that a program which imports pkg links.
func linksOf(t *testing.T, pkg string) []string {
	t.Helper()
	if goListed[pkg] == nil {
		goListed[pkg] = goList(t, pkg)
	}
	return goListed[pkg]
}
