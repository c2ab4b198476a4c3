package stories

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
)

// waitTimeout allows for a busy machine.
const waitTimeout = time.Minute

// Await looks again and again until something is so, for a minute at most.
func Await(ctx context.Context, so func(context.Context) (bool, error)) error {
	ctx, stop := context.WithTimeout(ctx, waitTimeout)
	defer stop()
	for {
		if yes, err := so(ctx); err != nil {
			return fmt.Errorf("wait: %w", err)
		} else if yes {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// RunUntil runs what runs until its context is done, until something is so, and waits for the end of it.
func RunUntil(ctx context.Context, so func(context.Context) (bool, error), runs ...func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(runs))
	for _, run := range runs {
		go func() { ended <- run(ctx) }()
	}
	err := Await(ctx, so)
	stop()
	for range runs {
		err = errors.Join(err, <-ended)
	}
	return err
}

// Work runs an inbox until nothing waits in it.
func Work(ctx context.Context, in *inbox.Inbox) error {
	return RunUntil(ctx, func(ctx context.Context) (bool, error) {
		waiting, err := in.Waiting(ctx)
		return waiting.Events == 0, err
	}, in.Run)
}
