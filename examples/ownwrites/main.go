// Command ownwrites shows an HTTP service that answers an order with the customer's account as it is after that order, although a consumer keeps
// the accounts, in a table of its own. The request waits until the consumer has settled the order's event, and no longer than it has time for:
//
//	go run ./examples/ownwrites
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that it removes afterwards. It needs no Kafka: the
// relay gives the events to the consumer's inbox.
//
// Read shop.go for the requests, accounts.go for the consumer, story.go for what happens, and check.go for what must be true in the end.
package main

import (
	"context"
	"io"
	"os"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() {
	stories.Main("ownwrites", func(ctx context.Context) error {
		return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
}

// config configures a run; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// careless makes the requests read the accounts without waiting, to see that the check finds it.
	careless bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.orders, s.slow, s.givenUp, s.check)
}
