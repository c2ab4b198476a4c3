package incidents

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// incident is a row of the table in docs/operations/runbooks.md.
type incident struct {
	title  string
	anchor string
	alerts []string
	log    string // the message of a line, "" for none
	status string // a part of what holdfast status prints, "" for none
	stays  bool   // in status, when it is over
}

var (
	entry  = regexp.MustCompile(`^\[([^\]]+)\]\(#([a-z0-9-]+)\)$`)
	quoted = regexp.MustCompile("`([^`]+)`")
)

// incidentsOf reads the table between its marks.
func incidentsOf(t *testing.T, page string) (all []incident) {
	t.Helper()
	_, rest, _ := strings.Cut(page, "<!-- incidents -->\n")
	table, _, found := strings.Cut(rest, "<!-- end -->\n")
	if !found {
		t.Fatal("the page has no table of incidents")
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[0]) == "incident" {
			if strings.TrimSpace(line) != "" && len(cells) != 4 {
				t.Errorf("a row has %d cells: %s", len(cells), line)
			}
			continue
		}
		name := entry.FindStringSubmatch(strings.TrimSpace(cells[0]))
		if name == nil {
			t.Errorf("a row leads to no entry: %s", line)
			continue
		}
		all = append(all, incident{name[1], name[2], quotes(cells[1]), first(quotes(cells[2])), first(quotes(cells[3])), strings.Contains(cells[3], "for a month")})
	}
	return all
}

func quotes(cell string) (texts []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		texts = append(texts, m[1])
	}
	return texts
}

func first(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// anchorsOf are the anchors of a page's headings, as GitHub makes them.
func anchorsOf(page string) (anchors []string) {
	for line := range strings.Lines(page) {
		if heading, is := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); is && strings.HasPrefix(line, "#") {
			anchors = append(anchors, strings.ReplaceAll(strings.ToLower(strings.TrimSpace(notInAnchors.ReplaceAllString(heading, ""))), " ", "-"))
		}
	}
	return anchors
}

var notInAnchors = regexp.MustCompile(`[^\w\s-]`)

func read(t *testing.T, path string) string {
	t.Helper()
	return string(need[[]byte](t)(os.ReadFile(path)))
}

var alertName = regexp.MustCompile(`\bHoldfast[A-Z]\w+`)

func TestPage_EveryAlertLeadsToItsRunbook(t *testing.T) {
	t.Parallel()
	page := read(t, operations+"/runbooks.md")
	named := alertName.FindAllString(page, -1)
	const base = "https://github.com/holdfast-go/holdfast/blob/main/docs/operations/"
	known := map[string]bool{}
	for _, r := range rules(t) {
		if known[r.Alert] {
			t.Errorf("%s is there twice", r.Alert)
		}
		known[r.Alert] = true
		if !slices.Contains(named, r.Alert) {
			t.Errorf("no row of the runbooks names %s", r.Alert)
		}
		file, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], base), "#")
		if !strings.HasPrefix(r.Annotations["runbook_url"], base) || !slices.Contains(anchorsOf(read(t, operations+"/"+file)), anchor) {
			t.Errorf("%s leads to %s, which is not there", r.Alert, r.Annotations["runbook_url"])
		}
		if r.Labels["severity"] != "critical" && r.Labels["severity"] != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s does not say what it means", r.Alert)
		}
		withoutValue := []string{"HoldfastNoRelay", "HoldfastLogFull", "HoldfastSamplesMissing"} // It is 0, or there is none.
		if strings.Contains(r.Annotations["description"], "$value") == slices.Contains(withoutValue, r.Alert) {
			t.Errorf("%s does not tell the value", r.Alert)
		}
	}
	if len(known) < 30 {
		t.Errorf("only %d alerts were found: the search has gone blind", len(known))
	}
	for _, name := range named {
		if !known[name] {
			t.Errorf("the runbooks name %s, which is no alert", name)
		}
	}
}

func TestPage_EveryIncidentHasItsEntry(t *testing.T) {
	t.Parallel()
	page := read(t, operations+"/runbooks.md")
	logs := read(t, operations+"/logs.md")
	for _, i := range incidentsOf(t, page) {
		_, text, found := strings.Cut(page, "\n### "+i.title+"\n")
		text, _, _ = strings.Cut(text, "\n### ")
		if !found || !slices.Contains(anchorsOf(page), i.anchor) || !strings.Contains(text, "**It means") || !strings.Contains(text, "**It is over** ") || !strings.Contains(text, "**Do") {
			t.Errorf("%s has no entry, or one that does not say what it means, what to do, or when it is over", i.title)
		}
		if i.log != "" && !strings.Contains(logs, i.log) {
			t.Errorf("logs.md does not have the line of %s: %s", i.title, i.log)
		}
		if len(i.alerts) == 0 && i.log == "" && i.status == "" {
			t.Errorf("nothing shows %s", i.title)
		}
	}
}

func TestPage_TheReaderOfTheTableSeesItsCells(t *testing.T) {
	t.Parallel()
	got := incidentsOf(t, "x\n<!-- incidents -->\n\n| incident | alerts | log line | status says |\n|---|---|---|---|\n| [A b](#a-b) | `X`, `Y` | `m: n` | `P` for a month |\n| [C](#c) | | | |\n\n<!-- end -->\n")
	if len(got) != 2 || got[0].title != "A b" || got[0].anchor != "a-b" || !slices.Equal(got[0].alerts, []string{"X", "Y"}) || got[0].log != "m: n" || got[0].status != "P" || !got[0].stays || got[1].log != "" || got[1].stays {
		t.Errorf("got %+v", got)
	}
}
