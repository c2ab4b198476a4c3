package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/pgserver"
	"github.com/holdfast-go/holdfast/internal/pgtest"
	"github.com/holdfast-go/holdfast/internal/skip"
)

// asCommand makes this test binary the command itself, to see what it exits with.
const asCommand = "WATERMARK_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(pgtest.Main(m))
}

func told(t *testing.T, c config) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), &out, c)
	t.Logf("%s", &out)
	return out.String(), err
}

func TestWithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	text, err := told(t, config{})
	if errors.Is(err, pgserver.ErrNoServer) {
		skip.Without(t, "PostgreSQL", "install it", err)
	}
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
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL=postgres://x:secret@127.0.0.1:1/x")
	said, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it exits with %v, want status 1", err)
	}
	if !bytes.Contains(said, []byte("watermark: DATABASE_URL is set")) || bytes.Contains(said, []byte("secret")) {
		t.Errorf("it says %s", said)
	}
}
