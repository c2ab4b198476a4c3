package stories

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/waiting"
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

// Work runs an inbox until nothing waits in any consumer of the schema.
func Work(ctx context.Context, in *inbox.Inbox, pool *pgxpool.Pool, schema string) error {
	room, err := waiting.New(pool, waiting.Config{Schema: schema})
	if err != nil {
		return err
	}
	return RunUntil(ctx, func(ctx context.Context) (bool, error) {
		all, err := room.List(ctx, waiting.Filter{Origin: dlq.OriginInbox, Limit: 1})
		return len(all) == 0, err
	}, in.Run)
}
