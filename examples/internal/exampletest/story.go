package exampletest

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Story is a run of an example that tells what it does.
type Story func(context.Context, io.Writer) error

// ToItsEnd wants a story that is named no server to start its own, to be told to its end, to say all of this, and so many
// promises to hold. It returns what was said.
func ToItsEnd(t *testing.T, story Story, promises int, says ...string) (text string) {
	t.Helper()
	text, err := Told(t, story)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range append(says, "started for this run", "Every promise held.") {
		if !strings.Contains(text, want) {
			t.Errorf("the story does not say %q", want)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^    ok `).FindAllString(text, -1)); n != promises {
		t.Errorf("%d promises were found to hold, want %d", n, promises)
	}
	return text
}

// OnNamedServer wants a story that is named db to use it, to be told to its end, and to leave db as it was. It returns what
// was said.
func OnNamedServer(t *testing.T, db *pgtest.DB, example string, story Story) (text string) {
	t.Helper()
	text, err := Told(t, story)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "started for this run") {
		t.Error("it started a server of its own")
	}
	NoSchemas(t, db, example)
	return text
}

// NoSchemas wants no schema of an example to be left behind.
func NoSchemas(t *testing.T, db *pgtest.DB, example string) {
	t.Helper()
	if n := pgtest.Count(t, db, "select count(*) from pg_namespace where nspname like $1", example+"%"); n != 0 {
		t.Errorf("%d schemas are left behind", n)
	}
}

// Breaks wants a story to end with these promises broken. It returns what was said.
func Breaks(t *testing.T, story Story, promises ...string) (text string) {
	t.Helper()
	text, err := Told(t, story)
	for _, want := range promises {
		if err == nil || !strings.Contains(err.Error(), "a promise did not hold: "+want) {
			t.Errorf("it ends with %v, want %q", err, want)
		}
	}
	if strings.Contains(text, "Every promise held") {
		t.Error("the story says that every promise held")
	}
	return text
}

// WithoutServer wants the command to exit with status 1 where the server that it is named is not there, and to say so
// without the password.
func WithoutServer(t *testing.T, example string) {
	t.Helper()
	story, said := Refused(t, "DATABASE_URL=postgres://x:secret@127.0.0.1:1/x")
	if !strings.Contains(said, example+": DATABASE_URL is set") || strings.Contains(story+said, "secret") {
		t.Errorf("it says %s%s", story, said)
	}
}
