package lint

import (
	"regexp"
	"strings"
	"testing"
)

// unshown says what is missing from the page of trust boundaries: each one that the diagram draws has a section with a test and
// with what is not stopped, and the other way round.
func unshown(text string) (missing []string) {
	diagram, _, _ := strings.Cut(text[strings.Index(text, "```mermaid")+1:], "\n```")
	drawn := map[string]bool{}
	for _, m := range regexp.MustCompile(`\|"(B\d+): `).FindAllStringSubmatch(diagram, -1) {
		drawn[m[1]] = true
	}
	if len(drawn) < 10 {
		missing = append(missing, "boundaries in the diagram")
	}
	sections := regexp.MustCompile(`(?m)^## (B\d+) `).FindAllStringSubmatchIndex(text, -1)
	for i, s := range sections {
		name, end := text[s[2]:s[3]], len(text)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		body := text[s[0]:end]
		if !drawn[name] {
			missing = append(missing, name+" in the diagram")
		}
		delete(drawn, name)
		if !strings.Contains(body, "\n**Not stopped:**") {
			missing = append(missing, "what "+name+" does not stop")
		}
		for row := range strings.Lines(body) {
			cells := strings.Split(row, "|")
			if len(cells) == 5 && !strings.Contains(row, "---") && strings.TrimSpace(cells[3]) != "shown by" && !testName.MatchString(cells[3]) && strings.TrimSpace(cells[3]) != "the go command" {
				missing = append(missing, "a test of "+name+": "+strings.TrimSpace(cells[1]))
			}
		}
		if !testName.MatchString(body) {
			missing = append(missing, "a test of "+name)
		}
	}
	for name := range drawn {
		missing = append(missing, "the section of "+name)
	}
	return missing
}

func TestBoundaries_EveryTrustBoundaryNamesItsTestsAndWhatIsNotStopped(t *testing.T) {
	text := read(t, "docs/trust-boundaries.md")
	for _, m := range unshown(text) {
		t.Errorf("docs/trust-boundaries.md lacks %s", m)
	}
	for change, to := range map[string][2]string{
		"a section less":           {"\n## B8 ", "\n### B8 "},
		"an arrow less":            {`"B4: records"`, `"records"`},
		"a control without a test": {"`TestReceive_AnIdWithAnotherPayloadIsAConflict`", "we believe"},
		"a section that stops all": {"**Not stopped:** as B1", "As B1"},
	} {
		changed := strings.Replace(text, to[0], to[1], 1)
		if changed == text || len(unshown(changed)) == 0 {
			t.Errorf("%s is not found", change)
		}
	}
}
