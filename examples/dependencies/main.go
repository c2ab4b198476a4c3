// Command dependencies shows a consumer whose handler calls a payment provider that is away for a while. The provider answers 503 and says
// when to come again, then it refuses connections, then it does not answer. Meanwhile other events are handled. In the end each order is
// charged once, and nothing is a dead letter:
//
//	go run ./examples/dependencies
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that it removes afterwards. It needs no Kafka:
// events come in through Receive, as from anywhere.
//
// Read billing.go for the handler, provider.go for what it calls, story.go for what happens, and check.go for what must be true in the end.
package main

import (
	"context"
	"io"
	"os"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() {
	stories.Main("dependencies", func(ctx context.Context) error {
		return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
}

// config configures a run; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// careless makes the handler return the errors of its calls as they are, to see that the check finds it.
	careless bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.busy, s.refusing, s.silent, s.back, s.check)
}
