package lint

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
)

// A question is what somebody asks who weighs holdfast, adopts it or is on call for it, and where the documents answer.
type question struct {
	asked   string
	page    string
	heading string // as the page has it
	answer  string // words that the answer has, in any lines: who moves the answer moves them here
}

// questions are those with which a review of the documents began. Reword an answer as you like; a question never loses its place.
var questions = []question{
	{"What is holdfast for, and when is it the wrong choice?", "README.md", "When not to use it", "You want jobs, workflows or cron"},
	{"How do I see it run within minutes?", "README.md", "Try it", "go run ./examples/hello"},
	{"Which steps bring it into a service that exists?", "docs/faq.md", "How do I add it to a service?", "`holdfast migrate`"},
	{"What does an event cost the transaction that writes it?", "docs/faq.md", "What does it cost my transaction?", "One statement"},
	{"What happens while Kafka is away for a day?", "docs/faq.md", "What happens if Kafka is down for a day?", "events wait in the log in Postgres"},
	{"How do consumers get faster?", "docs/operations/capacity.md", "Consumers", "more nodes than partitions do nothing"},
	{"How many relays run, on how many lanes?", "docs/faq.md", "How many relays and lanes?", "Relays beyond the number of lanes are idle"},
	{"How does a pipeline run the migrations?", "docs/guides/migrations.md", "Migrations by a tool of yours", "`holdfast migrate --print` prints the SQL"},
	{"How does a new version go in?", "docs/operations.md", "Upgrades", "Run `holdfast migrate` of the new build"},
	{"How is what we know of a person erased?", "docs/guides/erasure.md", "Before the first request", "delete the key"},
	{"What can go wrong that nobody promised me?", "docs/not-promised.md", "What is not promised", "An event can be in Kafka more than once"},
	{"Is it exactly once?", "docs/concepts.md", "Exactly once", "*take effect* once"},
	{"What happens without outbox.Lock?", "docs/guides/write-events.md", "Keep the order of a key", "Without either, either order may be published"},
	{"How is a handler tested?", "docs/guides/testing.md", "Test your handlers", "Package `holdfasttest` runs a handler on one event"},
	{"A dead letter wakes me: what now?", "docs/operations/dead-letters.md", "Where to start", "`holdfast dlq show 4711`"},
	{"Where has one event got to?", "docs/operations/find.md", "Where is my event?", "holdfast find"},
	{"What should wake somebody?", "docs/operations/alerts.md", "Install the alerts", "rule_files"},
	{"How does it connect to a broker with TLS, or in a cloud?", "docs/faq.md", "Does it work with MSK, Confluent Cloud, TLS and SASL?", "SASL PLAIN, SCRAM and OAUTHBEARER"},
	{"Does it run on a managed Postgres, and through a pooler?", "docs/faq.md", "Does it work with managed Postgres (RDS, Aurora, Cloud SQL)?", "no extension"},
	{"How far along is it, and what does a release promise?", "docs/faq.md", "How mature is it?", "There is no v1 yet"},
}

// farthest is how many links of documents an answer may be away from the README, and deepest in how many lines after its heading it begins.
const (
	farthest = 2
	deepest  = 40
)

// clicks are the documents by the number of links on the shortest way from the README.
func clicks(t *testing.T) map[string]int {
	t.Helper()
	away, next := map[string]int{"README.md": 0}, []string{"README.md"}
	for n := 1; len(next) > 0; n++ {
		var found []string
		for _, doc := range next {
			for _, m := range link.FindAllStringSubmatch(prose(read(t, doc)), -1) {
				to := path.Join(path.Dir(doc), m[1])
				if _, met := away[to]; m[1] == "" || met || strings.Contains(m[1], "://") || path.Ext(to) != ".md" {
					continue
				}
				away[to] = n
				found = append(found, to)
			}
		}
		next = found
	}
	return away
}

// unanswered says why a page does not answer a question in the place that is named, or nothing.
func unanswered(q question, page string) string {
	lines := strings.Split(page, "\n")
	at, level := -1, ""
	for i, line := range lines {
		hashes, title, ok := strings.Cut(line, " ")
		if ok && hashes != "" && strings.Trim(hashes, "#") == "" && strings.TrimSpace(title) == q.heading {
			at, level = i, hashes
			break
		}
	}
	if at < 0 {
		return "has no such heading"
	}
	end := min(at+1+deepest, len(lines))
	fenced := false
	for i := at + 1; i < end; i++ {
		if strings.HasPrefix(strings.TrimSpace(lines[i]), "```") {
			fenced = !fenced
		}
		hashes, _, ok := strings.Cut(lines[i], " ")
		if !fenced && ok && hashes != "" && strings.Trim(hashes, "#") == "" && len(hashes) <= len(level) {
			end = i
		}
	}
	words := strings.Join(strings.Fields(strings.Join(lines[at+1:end], " ")), " ")
	if !strings.Contains(words, q.answer) {
		return fmt.Sprintf("does not say %q there within %d lines", q.answer, deepest)
	}
	return ""
}

func TestQuestions_EachIsAnsweredAtMostTwoClicksFromTheREADME(t *testing.T) {
	away := clicks(t)
	for _, q := range questions {
		if why := unanswered(q, read(t, q.page)); why != "" {
			t.Errorf("%q: %s, %q: it %s. Put it back, or say in this table where the answer is now", q.asked, q.page, q.heading, why)
		}
		if n, ok := away[q.page]; !ok || n > farthest {
			t.Errorf("%q: %s is not within %d clicks of README.md: link it from there or from docs/README.md", q.asked, q.page, farthest)
		}
	}
	if len(questions) != 20 {
		t.Errorf("there are %d questions, want 20: a question may get another place, and none goes", len(questions))
	}
}

func TestQuestions_AnAnswerThatIsGoneOrFarDownIsFound(t *testing.T) {
	q := question{heading: "How?", answer: "so and so"}
	for page, answered := range map[string]bool{
		"# P\n## How?\nIt is so\nand so.\n":                                      true,
		"## How?\n### Part\nso and so\n":                                         true,
		"## How?\n```sh\n# so\n```\nso and so\n":                                 true,
		"## How\nso and so\n":                                                    false,
		"so and so\n## How?\n":                                                   false,
		"## How?\n## Other\nso and so\n":                                         false,
		"## How?\n# Other\nso and so\n":                                          false,
		"## How?\n" + strings.Repeat("more\n", deepest-1) + "so and so\n":        true,
		"## How?\n" + strings.Repeat("more\n", deepest) + "so and so\n":          false,
		"### How?\n#hashtag\n" + strings.Repeat("\n", deepest-2) + "so and so\n": true,
	} {
		if why := unanswered(q, page); (why == "") != answered {
			t.Errorf("of %q it says %q", page, why)
		}
	}
	for text, want := range map[string]int{"**One.** Two [in a link](x.md): `three. four`.": 2, "**\"One?\"** Two! See 1.5 and\n[b](c.md).": 3} {
		if n := sentences(text); n != want {
			t.Errorf("in %q it finds %d sentences, want %d", text, n, want)
		}
	}
	if away := clicks(t); away["docs/README.md"] != 1 || away["docs/guides/erasure.md"] > 2 || len(away) < 50 {
		t.Errorf("from README.md it finds %d pages, docs/README.md after %d clicks: the search has gone blind", len(away), away["docs/README.md"])
	}
}

// sentences are how many a text has, as far as stops tell: of a link its words count, and code is one word.
func sentences(text string) int {
	text = linked.ReplaceAllString(regexp.MustCompile("`[^`]*`").ReplaceAllString(text, "code"), "$1")
	return len(regexp.MustCompile(`[.?!]["*)]*(\s|$)`).FindAllString(text, -1))
}

// An answer of docs/faq.md has at most six lines, and a link to the page that says more.
func TestQuestions_EveryAnswerOfThePageIsShortAndHasALink(t *testing.T) {
	parts := regexp.MustCompile(`(?m)^### `).Split(read(t, "docs/faq.md"), -1)[1:]
	for _, part := range parts {
		asked, answer, _ := strings.Cut(part, "\n")
		answer, _, _ = strings.Cut(answer, "\n## ")
		if n := strings.Count(strings.TrimSpace(answer), "\n") + 1; n > 6 {
			t.Errorf("%q has an answer of %d lines, at most 6: link the page that says more", asked, n)
		}
		if !link.MatchString(answer) {
			t.Errorf("%q has no link: where is the rest?", asked)
		}
		for line := range strings.Lines(answer) {
			if len([]rune(line)) > 121 {
				t.Errorf("%q has a line of %d characters, at most 120", asked, len([]rune(line))-1)
			}
		}
	}
	if len(parts) < 20 {
		t.Errorf("docs/faq.md has %d questions: the search has gone blind", len(parts))
	}
}

// An entry of docs/not-promised.md has at most three sentences, and a link: what is not promised, what happens, what to do.
func TestQuestions_EveryEntryOfWhatIsNotPromisedIsShort(t *testing.T) {
	n := 0
	for _, entry := range strings.Split(read(t, "docs/not-promised.md"), "\n- ")[1:] {
		entry, _, _ = strings.Cut(entry, "\n\n")
		n++
		bold, _, _ := strings.Cut(strings.TrimPrefix(entry, "**"), "**")
		if s := sentences(entry); s > 3 || !strings.HasPrefix(entry, "**") {
			t.Errorf("%q has %d sentences, at most 3, the first in bold", bold, s)
		}
		if !link.MatchString(entry) {
			t.Errorf("%q has no link: where is it said at length?", bold)
		}
	}
	if n < 40 {
		t.Errorf("docs/not-promised.md has %d entries: the search has gone blind", n)
	}
}
