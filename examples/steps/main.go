// Command steps shows a handler that calls two services, each in a step. One of them is busy, and twice its process is killed right after
// a call. No call is made again that was recorded. The service that honors keys does everything once:
//
//	go run ./examples/steps
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that it removes afterwards. It needs no Kafka:
// events come in through Receive, as from anywhere.
//
// Read shipping.go for the handler, node.go for the process that is killed, services.go for what it calls, story.go for what happens, and
// check.go for what must be true in the end.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// asNode makes this command a process that handles events: node.go.
const asNode = "STEPS_NODE"

func main() {
	if text := os.Getenv(asNode); text != "" {
		if err := runNode(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	stories.Main("steps", func(ctx context.Context) error {
		return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")})
	})
}

// config configures a run; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// careless makes the handler call without steps, to see that the check finds it.
	careless bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.plain, s.busy, s.killed, s.killedWithoutKeys, s.check)
}
