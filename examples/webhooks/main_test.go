package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func told(t *testing.T, c config) (string, error) {
	t.Helper()
	return exampletest.Told(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) })
}

func TestWithoutAnyServerTheStoryOfTheWebhooksIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	text, err := told(t, config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"started for this run",
		"200  a payment of the bank's, once more", "200  the push as another delivery",
		"401  one whose amount was changed", "503  the second copy", "200  the first copy",
		"202  the payment", "booked by Run", "Every promise held.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the story does not say %q", want)
		}
	}
	if n := len(regexp.MustCompile(`(?m)^    ok `).FindAllString(text, -1)); n != len(promises) {
		t.Errorf("%d promises were found to hold, want %d", n, len(promises))
	}
}

func TestADatabaseThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	text, err := told(t, config{DatabaseURL: db.DSN})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "started for this run") {
		t.Error("it started a server of its own")
	}
	if n := pgtest.Count(t, db, "select count(*) from pg_namespace where nspname like 'webhooks%'"); n != 0 {
		t.Errorf("%d schemas are left behind", n)
	}
}

func TestAServiceThatBelievesAnyoneBreaksThePromises(t *testing.T) {
	t.Parallel()
	text, err := told(t, config{DatabaseURL: pgtest.New(t).DSN, trusting: true})
	if err == nil || !strings.Contains(err.Error(), "a promise did not hold: a payment that is not signed is answered 200, not 401") {
		t.Errorf("it ends with %v", err)
	}
	if strings.Contains(text, "Every promise held") {
		t.Error("the story says that every promise held")
	}
}

func TestAPaymentThatIsBookedTwiceIsFound(t *testing.T) {
	t.Parallel()
	s := &story{Story: stories.Story{Out: io.Discard}, config: config{DatabaseURL: pgtest.New(t).DSN}}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pool.Exec(t.Context(), "insert into payments (account, cents) values ('alice', 1200), ('alice', 1200)"); err != nil {
		t.Fatal(err)
	}
	if err := s.check(t.Context()); err == nil || !strings.Contains(err.Error(), "a promise did not hold: each payment that the bank signed is booked once: 3 exceptions") {
		t.Errorf("it ends with %v", err)
	}
}

func TestTheCommandExitsWithStatusOneWhereItHasNoServer(t *testing.T) {
	t.Parallel()
	_, said := exampletest.Refused(t, "DATABASE_URL=postgres://x:secret@127.0.0.1:1/x")
	if !strings.Contains(said, "webhooks: DATABASE_URL is set") || strings.Contains(said, "secret") {
		t.Errorf("it says %s", said)
	}
}
