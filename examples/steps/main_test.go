package main

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) {
	if os.Getenv(asNode) != "" {
		main()
		return
	}
	exampletest.Main(m, main)
}

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestSteps_WithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	exampletest.ToItsEnd(t, telling(config{}), len(promises)+2,
		"warehouse for order 2: calls 1, effects 1", "payments for order 2: calls 2, effects 1",
		"payments for order 3: calls 2, effects 1", "warehouse for order 4: calls 2, effects 2")
}

func TestSteps_AServerThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "steps", telling(config{DatabaseURL: db.DSN}))
}

func TestSteps_AHandlerWithoutStepsBreaksThePromises(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, careless: true}), "each order's two steps are recorded")
}

func TestSteps_TheCommandExitsWithStatusOneWithoutItsServer(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "steps")
}
