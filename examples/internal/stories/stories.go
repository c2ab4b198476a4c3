// Package stories is what the examples that tell a story share: a story goes through chapters, on servers of its own, and
// asks in SQL at its end whether every promise held.
//
// None of it is needed in a service. What a service needs is in the examples themselves.
package stories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
)

// Main is what an example does as a command: it runs until an interrupt, and ends with status 1 where it fails.
func Main(example string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for the cleaning up
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "\n%s: %v\n", example, err)
		os.Exit(1)
	}
}

// Story is what the chapters of a story share. Out is required. It is for one goroutine at a time.
type Story struct {
	Out io.Writer // where the story goes

	*servers.Servers // there from Start on

	atEnd []func()
}

// Say writes a line.
func (s *Story) Say(format string, args ...any) { fmt.Fprintf(s.Out, format+"\n", args...) }

// Tell goes through the chapters until one fails, and stops then. Without an error every promise held.
func (s *Story) Tell(ctx context.Context, chapters ...func(context.Context) error) (err error) {
	defer func() { err = errors.Join(err, s.Stop()) }()
	for _, chapter := range chapters {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	s.Say("\nEvery promise held.")
	return nil
}

// Start starts what an example runs on: a Postgres, or a place of its own in the one that databaseURL names, with holdfast's
// tables and the example's own.
func (s *Story) Start(ctx context.Context, example, databaseURL, tables string) (err error) {
	s.Servers, err = servers.Start(ctx, servers.Config{DatabaseURL: databaseURL, NoKafka: true, Name: servers.NewName(example)})
	if err != nil {
		return err
	}
	if err := holdfast.Migrate(ctx, s.Pool, holdfast.SchemaConfig{Schema: s.Schema}); err != nil {
		return err
	}
	_, err = s.Pool.Exec(ctx, tables)
	return err
}

// AtEnd has something stopped when the story ends: what was started last first, and the servers after all of it.
func (s *Story) AtEnd(stop func()) { s.atEnd = append(s.atEnd, stop) }

// Stop ends what was started. A story that was told has done so.
func (s *Story) Stop() error {
	for _, stop := range slices.Backward(s.atEnd) {
		stop()
	}
	if s.Servers == nil {
		return nil
	}
	return s.Servers.Stop()
}
