package lint

import (
	"regexp"
	"slices"
	"testing"
)

// otherSpellings are names of metrics and of attributes of logs and spans that were in use beside the ones we chose: the names of the
// observability contract in document 004. docs/project/decisions.md has the reasons.
var otherSpellings = map[string]*regexp.Regexp{
	"idempotent.replayed":              regexp.MustCompile(`\bidempotent[._]replays\b`),
	"idempotent.conflict":              regexp.MustCompile(`\bidempotent[._]conflicts\b`),
	"idempotency_key":                  regexp.MustCompile(`\bidempotency\.key\b|"key_hash"`),
	"attempt, as an attribute":         regexp.MustCompile(`\bidempotency\.attempt\b`),
	"outcome, as an attribute":         regexp.MustCompile(`\bidempotency\.result\b|\bresult=~?\\?"(created|replayed|\$)|"result", string\(o\.Result\)`),
	"from_state and to_state in a log": regexp.MustCompile(`"(from|to)", (from|to)\b`),
	"error_code, as an attribute":      regexp.MustCompile(`"code", o\.Code`),
}

// mayNameOthers are files that say what a name was called, or what the documents call it.
var mayNameOthers = []string{"CHANGELOG.md", "docs/project/decisions.md", "docs/reference/requirement-names.md", "docs/project/requirements.md", "rig/internal/lint/spelling_test.go", "rig/internal/lint/requirements_test.go"}

func spelledOtherwise(text string) (found []string) {
	for ours, others := range otherSpellings {
		if m := others.FindString(text); m != "" {
			found = append(found, m+" instead of "+ours)
		}
	}
	return found
}

func TestSpelling_MetricsAndAttributesHaveOneSpelling(t *testing.T) {
	files := texts(t)
	for _, want := range []string{"docs/dashboards/idempotency.json", "metrics/requests.go", "contrib/otel/trace.go", "examples/refunds/telemetry.go", "docs/reference/metrics.md"} {
		if !slices.Contains(files, want) {
			t.Fatalf("%s is not read: the search has gone blind", want)
		}
	}
	for _, file := range files {
		if slices.Contains(mayNameOthers, file) {
			continue
		}
		for _, other := range spelledOtherwise(read(t, file)) {
			t.Errorf("%s has %s", file, other)
		}
	}
}

func TestSpelling_AnotherSpellingIsFound(t *testing.T) {
	for _, text := range []string{"`idempotent.replays`", "idempotent_conflicts", `attribute.Key("idempotency.key")`, "`idempotency.attempt`", "`idempotency.result`",
		`"from", from, "to", to`, `idempotent_duration_seconds_bucket{result=\"created\"}`, `"code", o.Code`} {
		if found := spelledOtherwise(text); len(found) != 1 {
			t.Errorf("in %s it finds %q", text, found)
		}
	}
	if found := spelledOtherwise("idempotent.replayed idempotent_conflict_total idempotency.key_missing `idempotency_key` and `attempt`"); len(found) != 0 {
		t.Errorf("it takes %q for other spellings", found)
	}
}
