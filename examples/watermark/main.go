// Command watermark shows how a handler keeps from going back when events overtake each other:
// version 2 of a price comes before version 1, and the price stays that of version 2.
//
//	go run ./examples/watermark
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that
// it removes afterwards. It needs no Kafka: events come in through Receive, as from anywhere.
//
// Read prices.go for the handler, story.go for what happens to it, and check.go for what must be
// true in the end.
package main

import (
	"context"
	"io"
	"os"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() {
	stories.Main("watermark", func(ctx context.Context) error {
		return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
}

// config configures a run; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// careless makes the shop take every price as it comes, to see that the check finds it.
	careless bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the
// server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.overtaken, s.repeated, s.replayed, s.crowd, s.check)
}
