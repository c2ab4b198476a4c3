// Command webhooks shows a service that receives webhooks of two providers, a bank that follows
// Standard Webhooks and GitHub: what they send takes effect once, whatever is sent.
//
//	go run ./examples/webhooks
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that
// it removes afterwards. It needs no Kafka and no provider: it signs as they do.
//
// Read service.go for the two endpoints and their handlers, story.go for what is sent to them, and
// check.go for what must be true in the end.
package main

import (
	"context"
	"io"
	"os"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() {
	stories.Main("webhooks", func(ctx context.Context) error {
		return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
}

// config configures a run; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// trusting makes the service believe every signature, to see that the story finds it.
	trusting bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the
// server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.delivered, s.repeated, s.forged, s.inHand, s.failing, s.check)
}
