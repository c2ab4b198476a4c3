package lint

import (
	"regexp"
	"strings"
	"testing"
)

// Turns that a native reader stumbles over, and what says it. They were the most frequent of those that a reading found.
var turns = []struct {
	turn *regexp.Regexp
	say  string
}{
	{regexp.MustCompile(`(?i)\b(?:somebody|whoever)\b`), "a person, someone, anyone who"},
	{regexp.MustCompile(`(?i)\banew\b`), "again"},
	{regexp.MustCompile(`(?i)\bin place of\b`), "instead of"},
	{regexp.MustCompile(`(?i)\bmade again\b`), "recreated"},
	{regexp.MustCompile(`(?i)\b(?:imitation of Kafka)\b`), "in-process fake Kafka"},
	{regexp.MustCompile(`(?i)\bsays so\b`), "reports it, or name what says it"},
	{regexp.MustCompile(`(?i)\basks? nobody\b`), "has no authentication"},
	{regexp.MustCompile(`(?i)\bwaiting would not help\b`), "retrying cannot fix it"},
	{regexp.MustCompile(`(?i)\bgoes? on trying\b`), "keeps trying"},
	{regexp.MustCompile(`(?i)\bgoes? ahead of\b`), "is put in front of"},
	{regexp.MustCompile(`(?i)\b(?:at hand|is had|be had alone)\b`), "available, there"},
	{regexp.MustCompile(`(?i)\b(?:dormant|suspect) (?:event|key|row)s?\b`), "parked, stored or scheduled: the three states in which an event waits"},
	{regexp.MustCompile(`(?i)\b(?:a|the|its|each) key (?:is|was) (?:held|blocked)\b`), "the key waits"},
}

// longestSentence is how many words a sentence has at most, as CONVENTIONS.md says. A name in backticks is one word.
const longestSentence = 25

// pagesForUsers are those that users read. What only contributors read and generated pages have other readers.
func pagesForUsers(t *testing.T) (pages []string) {
	t.Helper()
	for _, doc := range documents(t) {
		switch {
		case strings.HasPrefix(doc, "docs/project/"), strings.HasPrefix(doc, "rig/"), strings.HasPrefix(doc, "docs/reference/configuration"),
			doc == "THIRD_PARTY_LICENSES.md", doc == "CHANGELOG.md", doc == "CONVENTIONS.md", doc == "docs/reference/requirement-names.md":
		default:
			pages = append(pages, doc)
		}
	}
	if len(pages) < 60 {
		t.Fatalf("there are %d pages: the search has gone blind", len(pages))
	}
	return pages
}

func TestEnglish_PagesHaveNoTurnThatReadersStumbleOver(t *testing.T) {
	for _, page := range pagesForUsers(t) {
		text := strings.Join(strings.Fields(inTicks.ReplaceAllString(prose(read(t, page)), "X")), " ")
		for _, turn := range turns {
			if m := turn.turn.FindStringIndex(text); m != nil {
				t.Errorf("%s: %q: say: %s", page, text[max(0, m[0]-40):min(len(text), m[1]+20)], turn.say)
			}
		}
	}
}

// Pages and examples call one thing by one word: what runs without Kafka is an in-process fake.
func TestEnglish_ExamplesSayInProcessFakeAsPagesDo(t *testing.T) {
	said := 0
	for _, file := range texts(t) {
		if !strings.HasPrefix(file, "examples/") {
			continue
		}
		text := strings.ToLower(read(t, file))
		said += strings.Count(text, "in-process fake")
		if strings.Contains(text, "imitation") {
			t.Errorf("%s has the word imitation: say in-process fake", file)
		}
	}
	if said < 4 {
		t.Errorf("the examples say it %d times: the search has gone blind", said)
	}
}

var (
	inTicks = regexp.MustCompile("`[^`]*`")
	ends    = regexp.MustCompile(`[.!?:;]\**\s+`)
	newItem = regexp.MustCompile(`^\s*(?:[-*]|\d+\.|#+)\s`)
)

// sentencesOf are those of a page's paragraphs and items. Cells of tables are notes, and are left out.
func sentencesOf(text string) (all []string) {
	var paragraph []string
	flush := func() {
		joined := inTicks.ReplaceAllString(linked.ReplaceAllString(strings.Join(paragraph, " "), "$1"), "X")
		for _, s := range ends.Split(joined+" ", -1) {
			if s = strings.TrimSpace(s); s != "" {
				all = append(all, s)
			}
		}
		paragraph = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.TrimSpace(line) == "" || newItem.MatchString(line) || strings.HasPrefix(line, "|") {
			flush()
		}
		if !strings.HasPrefix(line, "|") {
			paragraph = append(paragraph, newItem.ReplaceAllString(line, ""))
		}
	}
	flush()
	return all
}

func TestEnglish_SentencesAreShort(t *testing.T) {
	found := 0
	for _, page := range pagesForUsers(t) {
		if page == "docs/reference/cli.md" {
			continue // lines of flags and examples
		}
		for _, s := range sentencesOf(prose(read(t, page))) {
			found++
			if strings.HasPrefix(s, "Shown by ") || strings.Contains(s, " · ") {
				continue // a list
			}
			if n := len(strings.Fields(s)); n > longestSentence {
				t.Errorf("%s: a sentence has %d words, at most %d: %s", page, n, longestSentence, s)
			}
		}
	}
	if found < 3000 {
		t.Errorf("only %d sentences were found: the search has gone blind", found)
	}
}

func TestEnglish_SentencesAreFoundInParagraphsAndItems(t *testing.T) {
	got := strings.Join(sentencesOf("# A title\n\nOne is\nhere. Two [are](x.md) `a b c`: three.\n- four; five\n| six. | seven. |\n1. **Eight.** Nine\n"), "|")
	if want := "A title|One is here|Two are X|three|four|five|**Eight|Nine"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
