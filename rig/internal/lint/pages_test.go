package lint

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/state"
)

// What one page says of a thing, the others say too, and the code does.

// chapter is a document from a heading to the next one of any level.
func chapter(t *testing.T, doc, title string) string {
	t.Helper()
	text := read(t, doc)
	_, after, ok := strings.Cut(text, "\n"+title+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q: the search has gone blind", doc, title)
	}
	if next := heading.FindStringIndex(after); next != nil {
		after = after[:next[0]]
	}
	return after
}

// measured is a number, or several of one kind: "1.02, 1.02 and 0.84".
var measured = regexp.MustCompile(strings.ReplaceAll(`N(?:, N)*(?: and N)?`, "N", `\d+(?:,\d{3})*(?:\.\d+)?`))

// stands says whether a text has these figures, alone and not as a part of others.
func stands(text, figures string) bool {
	return regexp.MustCompile(`(?:^|[^\d.,])` + regexp.QuoteMeta(figures) + `(?:$|[^\d.,]|[.,](?:$|\D))`).MatchString(text)
}

// currentFigures are docs/performance.md without the last of five columns, which has other runs.
func currentFigures(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	rows := 0
	for line := range strings.Lines(read(t, "docs/performance.md")) {
		if cells := strings.Split(strings.ReplaceAll(line, `\|`, "/"), "|"); len(cells) == 7 {
			rows++
			line = strings.Join(cells[:5], "|") + "\n"
		}
		b.WriteString(line)
	}
	if rows < 30 {
		t.Fatalf("the table of figures has %d rows: the search has gone blind", rows)
	}
	return b.String()
}

// Figures were measured again, and the page that adds them up kept those of weeks before.
func TestPages_TheFiguresOfCapacityStandInPerformance(t *testing.T) {
	current := currentFigures(t)
	const page = "docs/operations/capacity.md"
	var said []string
	for line := range strings.Lines(chapter(t, page, "## What one machine does")) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			derived := regexp.MustCompile(`some \d[\d,]*`) // by the arithmetic that is beside it
			said = append(said, measured.FindAllString(derived.ReplaceAllString(cells[2], ""), -1)...)
		}
	}
	if len(said) < 20 {
		t.Errorf("only %q were found: the search has gone blind", said)
	}
	ratios := regexp.MustCompile(`(?:published|is published at) ([\d., and]+) times`).FindAllStringSubmatch(strings.ReplaceAll(read(t, page), "\n", " "), -1)
	if len(ratios) != 2 {
		t.Errorf("%q are the ratios of relays and of partitions, want two: the search has gone blind", ratios)
	}
	for _, m := range ratios {
		said = append(said, m[1])
	}
	for _, figures := range said {
		if !stands(current, figures) {
			t.Errorf("%s says %s, and docs/performance.md does not, or only of other runs", page, figures)
		}
	}
	const batches = "docs/guides/batch-handlers.md"
	rates := regexp.MustCompile(`\d+,\d{3}(?: and \d+,\d{3})?`).FindAllString(strings.ReplaceAll(prose(read(t, batches)), "\n", " "), -1)
	if len(rates) < 3 {
		t.Errorf("%s has only the figures %q: the search has gone blind", batches, rates)
	}
	for _, figures := range rates {
		if !stands(current, figures) {
			t.Errorf("%s says %s, and docs/performance.md does not, or only of other runs", batches, figures)
		}
	}
}

func TestPages_WhoNamesTheNumberOfLanesLeadsToItsRule(t *testing.T) {
	const rule = "concepts.md#how-many-lanes"
	chapter(t, "docs/concepts.md", "### How many lanes")
	named := 0
	for _, doc := range documents(t) {
		text := strings.ReplaceAll(prose(read(t, doc)), "\n", " ")
		if doc == "docs/concepts.md" || doc == "CHANGELOG.md" || doc == "docs/reference/cli.md" ||
			!regexp.MustCompile(`migrate --lanes|number of lanes is fixed|number of lanes, \d+, is fixed|lanes are (?:best|set)|(?:twice|half) as many (?:lanes|as the relays)`).MatchString(text) {
			continue
		}
		if named++; !strings.Contains(text, rule) {
			t.Errorf("%s says something of how many lanes there should be, and does not lead to docs/%s", doc, rule)
		}
	}
	if named < 2 {
		t.Errorf("only %d pages say it: the search has gone blind", named)
	}
	if code := read(t, "relay/decide.go"); !strings.Contains(code, "return (lanes + relays - 1) / relays") {
		t.Error("relays no longer share lanes evenly: see whether docs/" + rule + " is still right")
	}
}

func TestPages_OperationsLeadsToEachOfItsPages(t *testing.T) {
	leads := map[string]bool{}
	table, _, _ := strings.Cut(read(t, "docs/operations.md"), "\n## ")
	for _, m := range link.FindAllStringSubmatch(table, -1) {
		leads[path.Join("docs", m[1])] = true
	}
	pages := 0
	for _, doc := range documents(t) {
		if path.Dir(doc) != "docs/operations" {
			continue
		}
		if pages++; !leads[doc] {
			t.Errorf("the table of docs/operations.md has no link to %s", doc)
		}
	}
	if pages < 10 {
		t.Errorf("only %d pages were found: the search has gone blind", pages)
	}
}

// A comparison with one version beside a measurement of another compares neither.
func TestPages_VersionsOfOthersAreThoseThatAreMeasured(t *testing.T) {
	required := read(t, "rig/bench/peers/go.mod")
	for _, peer := range []struct{ module, named string }{
		{"github.com/riverqueue/river", `River(?:\]\([^)]*\) \|)? v?(\d+\.\d[\d.]*)`},
		{"github.com/ThreeDotsLabs/watermill", `[Ww]atermill v?(\d+\.\d[\d.]*)`},
		{"github.com/ThreeDotsLabs/watermill-sql/v4", `watermill-sql(?:/blob/v| v?)(\d+\.\d[\d.]*)`},
		{"github.com/ThreeDotsLabs/watermill-kafka/v3", `watermill-kafka v?(\d+\.\d[\d.]*)`},
	} {
		m := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(peer.module) + ` v(\S+)$`).FindStringSubmatch(required)
		if m == nil {
			t.Errorf("rig/bench/peers/go.mod does not require %s: the search has gone blind", peer.module)
			continue
		}
		named := 0
		for _, doc := range documents(t) {
			if doc == "CHANGELOG.md" {
				continue
			}
			for _, n := range regexp.MustCompile(peer.named).FindAllStringSubmatch(strings.ReplaceAll(read(t, doc), "\n", " "), -1) {
				named++
				if version := strings.TrimRight(n[1], "."); !strings.HasPrefix(m[1]+".", version+".") {
					t.Errorf("%s says %q, and rig/bench/peers/go.mod has %s of %s", doc, n[0], m[1], peer.module)
				}
			}
		}
		if named < 2 {
			t.Errorf("%s is named with a version %d times: the search has gone blind", peer.module, named)
		}
	}
}

func TestPages_ConnectionsAreThoseThatTheCodeAsksFor(t *testing.T) {
	relay := regexp.MustCompile(`leastConnections = (\d+)`).FindStringSubmatch(read(t, "relay/reach.go"))
	if relay == nil || !strings.Contains(read(t, "inbox/wiring.go"), "return 2*c.Workers + 2") {
		t.Fatal("relay/reach.go or inbox/wiring.go does not say how many connections are needed: the search has gone blind")
	}
	for doc, text := range map[string]string{
		"docs/operations/capacity.md": fmt.Sprintf("A relay needs %s, a consumer 2 × `Workers` + 2,", relay[1]),
		"docs/operations.md":          fmt.Sprintf("uses a few connections for single statements; %s are enough", relay[1]),
		"docs/project/performance.md": fmt.Sprintf("A relay needs %s connections; the bench gives each ", relay[1]),
		"docs/operations/doctor.md":   "fewer than 2 × workers + 2 connections",
	} {
		if !strings.Contains(strings.ReplaceAll(read(t, doc), "\n", " "), text) {
			t.Errorf("%s does not say %q", doc, text)
		}
	}
}

// The page of the alerts says which limits they have, and how they differ from those of status.
func TestPages_TheLimitsOfAlertsAndOfStatusAreAsSaid(t *testing.T) {
	rules := read(t, "docs/dashboards/holdfast.rules.yml")
	status := map[string]time.Duration{
		"HoldfastUnpublishedEventsOld":   state.DefaultLimits.Unpublished,
		"HoldfastWaitingInRelaysLong":    state.DefaultLimits.Waiting,
		"HoldfastWaitingInConsumersLong": state.DefaultLimits.Waiting,
	}
	said := regexp.MustCompile("(?m)^\\| `(Holdfast\\w+)` \\| (\\d+) s \\| (\\d+) s \\|").FindAllStringSubmatch(read(t, "docs/operations/alerts.md"), -1)
	if len(said) != len(status) {
		t.Errorf("the table of docs/operations/alerts.md has %d limits, want %d", len(said), len(status))
	}
	for _, m := range said {
		rule := regexp.MustCompile(`(?m)^ +- alert: ` + m[1] + `\n +expr: '[^'\n]* > (\d+)'$`).FindStringSubmatch(rules)
		if rule == nil || rule[1] != m[2] {
			t.Errorf("docs/operations/alerts.md says that %s fires from %s s, and the rule is %q", m[1], m[2], rule)
		}
		if limit := fmt.Sprint(int(status[m[1]].Seconds())); limit != m[3] {
			t.Errorf("docs/operations/alerts.md says that the limit of status beside %s is %s s, and it is %s", m[1], m[3], limit)
		}
	}
}

// A person looks a table up under the name that status and the metric give it.
func TestPages_TheRunbookOfAFullDiskNamesTablesAsStatusDoes(t *testing.T) {
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`\(\d+, '(\w+)', '\w+'\)`).FindAllStringSubmatch(read(t, "internal/state/queries.go"), -1) {
		known[m[1]] = true
	}
	if !known["log"] || !known["inbox"] {
		t.Fatalf("status has the tables %v: the search has gone blind", known)
	}
	_, causes, ok := strings.Cut(strings.ReplaceAll(chapter(t, "docs/operations/runbooks.md", "### The disk fills"), "\n", " "), "**It means and do,** by table: ")
	if !ok {
		t.Fatal("docs/operations/runbooks.md does not go by tables: the search has gone blind")
	}
	causes, _, _ = strings.Cut(causes, " - ")
	named := regexp.MustCompile("`(\\w+)`: ").FindAllStringSubmatch(causes, -1)
	if len(named) < 5 {
		t.Errorf("only %q are named: the search has gone blind", named)
	}
	for _, m := range named {
		if !known[m[1]] {
			t.Errorf("docs/operations/runbooks.md names the table %s, and status does not", m[1])
		}
	}
}

// A function that runs with its owner's rights is a way in: the page that lists them forgot one.
func TestPages_EveryFunctionWithItsOwnersRightsIsListed(t *testing.T) {
	text := strings.Join(strings.Fields(section(t, read(t, "docs/operations.md"), "## Roles")), " ")
	found := 0
	for _, body := range strings.Split(read(t, "schema.sql"), "\ncreate function holdfast.")[1:] {
		name, _, _ := strings.Cut(body, "(")
		head, _, _ := strings.Cut(body, "$$")
		if !strings.Contains(head, "security definer") || strings.Contains(head, "returns trigger") {
			continue
		}
		if found++; !strings.Contains(text, "`"+name+"`") {
			t.Errorf("docs/operations.md does not name the function %s, which runs with the rights of its owner", name)
		}
	}
	if found < 10 {
		t.Errorf("only %d functions were found: the search has gone blind", found)
	}
}

// The classes of errors have names, and a page had one that there never was.
func TestPages_ClassesOfErrorsAreThoseOfTheCode(t *testing.T) {
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s+\w+ +Class = "([A-Z_]+)`).FindAllStringSubmatch(read(t, "retry/class.go"), -1) {
		known[m[1]] = true
	}
	if len(known) < 6 {
		t.Fatalf("the classes are %v: the search has gone blind", known)
	}
	entry := section(t, read(t, "docs/operations/runbooks.md"), "### Handlers fail")
	classes := regexp.MustCompile("`([A-Z_]{4,})`").FindAllStringSubmatch(entry, -1)
	for _, m := range classes {
		if !known[m[1]] {
			t.Errorf("docs/operations/runbooks.md names the class %s, and there is none", m[1])
		}
	}
	if len(classes) < 2 {
		t.Errorf("the entry names %v: the search has gone blind", classes)
	}
}

// Comments that operators read name commands that there are.
func TestPages_CommandsInTheRolesExist(t *testing.T) {
	commands := read(t, "docs/reference/cli.md")
	listed := regexp.MustCompile(`holdfast ([a-z]+(?:, [a-z]+)*)\.`).FindAllStringSubmatch(read(t, "roles.sql"), -1)
	if len(listed) == 0 {
		t.Fatal("no command is named: the search has gone blind")
	}
	for _, m := range listed {
		for _, name := range strings.Split(m[1], ", ") {
			if !regexp.MustCompile(`(?m)^## holdfast ` + name + `\b`).MatchString(commands) {
				t.Errorf("roles.sql names holdfast %s, and there is no such command", name)
			}
		}
	}
}

// What is added until a release is what the release has: the changelog announced commands that a later entry replaced.
func TestPages_CommandsThatTheChangelogAddsExist(t *testing.T) {
	commands := read(t, "docs/reference/cli.md")
	changelog := read(t, "CHANGELOG.md")
	_, unreleased, _ := strings.Cut(changelog, "\n## Unreleased\n")
	unreleased, _, _ = strings.Cut(unreleased, "\n## ")
	_, added, _ := strings.Cut(unreleased, "\n### Added\n")
	added, _, _ = strings.Cut(added, "\n### ")
	named := regexp.MustCompile("`holdfast ([a-z][a-z-]*)").FindAllStringSubmatch(added, -1)
	if len(named) < 10 && strings.Count(changelog, "\n## ") == 1 {
		t.Fatalf("it names %d commands: the search has gone blind", len(named))
	}
	for _, m := range named {
		if !regexp.MustCompile(`(?m)^## holdfast ` + m[1] + `\b`).MatchString(commands) {
			t.Errorf("CHANGELOG.md adds holdfast %s, and there is no such command", m[1])
		}
	}
}

// A stop takes as long as its parts: the sum was of a relay that takes 20 s.
func TestPages_TheTimeOfAStopIsTheSumOfItsParts(t *testing.T) {
	page := strings.Join(strings.Fields(read(t, "docs/guides/shutdown.md")), " ")
	m := regexp.MustCompile(`allow (\d+) s for a consumer, then a second, (\d+) s for a relay, and (\d+) s at the end\. That is (\d+) s`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("docs/guides/shutdown.md has no sum: the search has gone blind")
	}
	var n [4]int
	for i := range n {
		_, _ = fmt.Sscan(m[i+1], &n[i])
	}
	if n[0]+1+n[1]+n[2] != n[3] {
		t.Errorf("%v: that is not the sum", n)
	}
	if !strings.Contains(page, fmt.Sprintf("`relay.Config.StopTimeout`, %d s", n[1])) || !strings.Contains(page, fmt.Sprintf("`service.Service.CloseTimeout`, %d s", n[2])) {
		t.Errorf("the parts of the sum %v are not those of the table", n)
	}
	if other := strings.Join(strings.Fields(read(t, "docs/guides/add-to-your-service.md")), " "); !strings.Contains(other, fmt.Sprintf("%d s with the defaults", n[3])) {
		t.Errorf("docs/guides/add-to-your-service.md does not say %d s", n[3])
	}
}

// Four pages had a list each of why an event is stored, and none was whole.
func TestPages_WhyAnEventIsStoredIsSaidOnce(t *testing.T) {
	const home = "docs/operations/consumers.md"
	if n := strings.Count(chapter(t, home, "### Why an event is stored"), "\n- "); n < 8 {
		t.Errorf("%s has %d reasons: the search has gone blind", home, n)
	}
	for _, doc := range []string{"docs/concepts.md", "docs/guides/consume.md", "docs/operations/waiting.md", "docs/glossary.md"} {
		if !strings.Contains(read(t, doc), "consumers.md#why-an-event-is-stored") {
			t.Errorf("%s does not lead to the reasons for which an event is stored", doc)
		}
	}
}

// A node that announces a type counts as its handler for two minutes. New events of the type are stored for an hour more.
func TestPages_TheTimesOfAnnouncedTypesAreTheCodes(t *testing.T) {
	m := regexp.MustCompile(`believeFor = time\.Hour\n`).FindString(read(t, "inbox/statements.go"))
	if m == "" || nodes.DeclareFor != 2*time.Minute {
		t.Fatal("inbox/statements.go or internal/nodes has another time: say it on the pages, and here")
	}
	stored := fmt.Sprintf("%d minutes", (nodes.DeclareFor+time.Hour)/time.Minute)
	every := fmt.Sprintf("announces its types every %d s", nodes.Every/time.Second)
	for doc, want := range map[string][]string{
		"docs/guides/consume.md":       {every, "for " + stored + " after the last announcement"},
		"docs/operations/consumers.md": {every, "for " + stored + " after the last announcement", "no node has announced for two minutes", "its events are stored for " + stored},
		"docs/operations/waiting.md":   {"none has announced it for two minutes", "[for " + stored + "](../guides/consume.md"},
		"docs/not-promised.md":         {"has announced the type for " + stored},
		"docs/guarantees.md":           {"last " + stored},
	} {
		text := strings.Join(strings.Fields(read(t, doc)), " ")
		for _, want := range want {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not say %q", doc, want)
			}
		}
	}
	told := regexp.MustCompile(`(?i)\b(\w+) minutes`)
	for _, page := range pagesForUsers(t) {
		text := strings.Join(strings.Fields(prose(read(t, page))), " ")
		for _, sentence := range regexp.MustCompile(`[.|] `).Split(text, -1) {
			if !strings.Contains(sentence, "announce") {
				continue
			}
			for _, m := range told.FindAllStringSubmatch(sentence, -1) {
				if m[1] != "two" && m[1]+" minutes" != stored {
					t.Errorf("%s: %q: a type that is announced counts for two minutes, and events of it are stored for %s", page, sentence, stored)
				}
			}
		}
	}
}
