package main

import (
	"context"
	"io"
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

func TestOwnWrites_WithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	exampletest.ToItsEnd(t, telling(config{}), len(promises)+1,
		"0 of 20 answers lacked", "answered with 202 Accepted", "503 Service Unavailable", "200 OK, with 6 orders", "202 Accepted, without a token")
}

func TestOwnWrites_AServerThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "ownwrites", telling(config{DatabaseURL: db.DSN}))
}

func TestOwnWrites_RequestsThatDoNotWaitShowOldAccounts(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, careless: true}), "each answer shows the order that it answers")
}

func TestOwnWrites_TheCommandExitsWithStatusOneWithoutItsServer(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "ownwrites")
}
