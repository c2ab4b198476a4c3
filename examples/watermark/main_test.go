package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestWatermark_WithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	exampletest.ToItsEnd(t, telling(config{}), len(promises),
		"careful  shop: 24.00, version 2", "careless shop: 19.00, version 1",
		"careful  shop: 29.00, version 4", "careless shop: 26.00, version 3",
		"of them and ends at version 100")
}

func TestWatermark_AServerThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "watermark", telling(config{DatabaseURL: db.DSN}))
}

func TestWatermark_AShopThatDoesNotAskBreaksThePromises(t *testing.T) {
	t.Parallel()
	text := exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, careless: true}),
		"each price is that of the highest version", "no price ever went back")
	if !strings.Contains(text, "BROKEN") {
		t.Error("the story does not say that a promise was broken")
	}
}

func TestWatermark_TheCommandExitsWithStatusOneWhereItCannotTellTheStory(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "watermark")
}
