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
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the cleaning up
	if err := run(ctx, os.Stdout, config{DatabaseURL: os.Getenv("DATABASE_URL")}); err != nil {
		fmt.Fprintln(os.Stderr, "\nwatermark:", err)
		os.Exit(1)
	}
}

// config is what a run can be told; the zero config starts its own server.
type config struct {
	DatabaseURL string

	// careless makes the shop take every price as it comes, to see that the check finds it.
	careless bool
}

// run tells the story on out. Its error says which promise did not hold, or what to do about the
// server.
func run(ctx context.Context, out io.Writer, c config) (err error) {
	s := &story{config: c, out: out}
	defer func() { err = errors.Join(err, s.stop()) }()
	for _, chapter := range []func(context.Context) error{
		s.start, s.overtaken, s.repeated, s.replayed, s.crowd, s.check,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "\nEvery promise held.")
	return nil
}
