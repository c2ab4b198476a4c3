package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/examples/internal/stories"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestWebhooks_WithoutAnyServerTheStoryOfTheWebhooksIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	exampletest.ToItsEnd(t, telling(config{}), len(promises),
		"200  a payment of the bank's, once more", "200  the push as another delivery",
		"401  one whose amount was changed", "503  the second copy", "200  the first copy",
		"202  the payment", "booked by Run")
}

func TestWebhooks_ADatabaseThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "webhooks", telling(config{DatabaseURL: db.DSN}))
}

func TestWebhooks_AServiceThatBelievesAnyoneBreaksThePromises(t *testing.T) {
	t.Parallel()
	exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, trusting: true}), "a payment that is not signed is answered 200, not 401")
}

func TestWebhooks_APaymentThatIsBookedTwiceIsFound(t *testing.T) {
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

func TestWebhooks_TheCommandExitsWithStatusOneWhereItHasNoServer(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "webhooks")
}
