// Command refunds shows a service that moves money through a payment gateway and back: a payment, a refund and a void each
// happen once, whatever fails and however often they are asked for.
//
//	go run ./examples/refunds
//
// It starts a PostgreSQL for itself; DATABASE_URL makes it run on yours, in schemas of its own that it removes afterwards.
// It needs no Kafka and no gateway: one that has its troubles runs inside the process.
//
// Read service.go for how the routes are guarded, transfer.go for what a request goes through, refunds.go and payments.go
// for what that is in each case, and telemetry.go for its metrics; story.go for what happens, and check.go for what
// must be true in the end.
package main

import (
	"context"
	"io"
	"os"
	"os/exec"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

func main() { stories.Main("refunds", command) }

// command tells the story, or is one of the processes that the story starts.
func command(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		return serve(ctx, os.Args[2:], os.Stdin, os.Stdout)
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL"), self: func() *exec.Cmd { return exec.Command(path) }})
}

// config configures a run; without a DatabaseURL it starts its own server.
type config struct {
	DatabaseURL string

	// self is the command that this program is, for the processes that it starts.
	self func() *exec.Cmd

	// forgetful makes a service that takes every request for a new one, to see that the story finds it.
	forgetful bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the
// server.
func run(ctx context.Context, out io.Writer, c config) error {
	s := &story{Story: stories.Story{Out: out}, config: c}
	return s.Tell(ctx, s.start, s.refunded, s.troubled, s.crowded, s.crashed, s.abandoned, s.notified, s.voided, s.check)
}
