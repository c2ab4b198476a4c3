package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func told(t *testing.T, c config) (string, error) {
	t.Helper()
	return exampletest.Told(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) })
}

func TestWithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	text, err := told(t, config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"started for this run",
		"careful  shop: 24.00, version 2", "careless shop: 19.00, version 1",
		"careful  shop: 29.00, version 4", "careless shop: 26.00, version 3",
		"of them and ends at version 100", "Every promise held.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the story does not say %q", want)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^    ok `).FindAllString(text, -1)); n != len(promises) {
		t.Errorf("%d promises were found to hold, want %d", n, len(promises))
	}
}

func TestAServerThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text, err := told(t, config{DatabaseURL: db.DSN})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "started for this run") {
		t.Error("it started a server of its own")
	}
	if n := pgtest.Count(t, db, "select count(*) from pg_namespace where nspname like 'watermark%'"); n != 0 {
		t.Errorf("%d schemas are left behind", n)
	}
}

func TestAShopThatDoesNotAskBreaksThePromises(t *testing.T) {
	t.Parallel()
	text, err := told(t, config{DatabaseURL: pgtest.New(t).DSN, careless: true})
	for _, want := range []string{"a promise did not hold: each price is that of the highest version", "a promise did not hold: no price ever went back"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it ends with %v, want %q", err, want)
		}
	}
	if strings.Contains(text, "Every promise held") || !strings.Contains(text, "BROKEN") {
		t.Error("the story does not say that a promise was broken")
	}
}

func TestTheCommandExitsWithStatusOneWhereItCannotTellTheStory(t *testing.T) {
	t.Parallel()
	story, said := exampletest.Refused(t, "DATABASE_URL=postgres://x:secret@127.0.0.1:1/x")
	if !strings.Contains(said, "watermark: DATABASE_URL is set") || strings.Contains(story+said, "secret") {
		t.Errorf("it says %s%s", story, said)
	}
}
