package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast/idempotency/internal/pause"
	"github.com/holdfast-go/holdfast/internal/private"
)

// Run removes expired keys, and the copies that Config.KeepExpired kept. It also completes abandoned requests
// (Route.Complete). It blocks until ctx is done, waits for the requests it is running, and returns nil; or an error, if the
// pool is closed. Any number of nodes may call it. An expired answer is never replayed, whether or not Run is running. With
// NewEphemeral, Run only waits.
func (g *Guard) Run(ctx context.Context) error {
	if g.pool == nil {
		<-ctx.Done()
		return nil
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var wg sync.WaitGroup
	wg.Go(func() { g.complete(ctx, end) })
	for ctx.Err() == nil {
		switch _, err := g.RunOnce(ctx); {
		case errors.Is(err, puddle.ErrClosedPool): // No later try gets a connection.
			end(err)
		case err != nil && ctx.Err() == nil:
			g.c.Logger.Warn("cleanup of idempotency keys failed, will retry", "error", private.Text(err))
		}
		pause.For(ctx, g.c.CleanupEvery/2+time.Duration(g.random()*float64(g.c.CleanupEvery)))
	}
	wg.Wait()
	if err := context.Cause(ctx); errors.Is(err, puddle.ErrClosedPool) {
		return fmt.Errorf("%w: close the pool after Run has returned", err)
	}
	return nil
}

// RunOnce removes all keys that have expired, in transactions of Config.CleanupBatch keys, and returns how many.
// An error ends it; what is removed stays so. Run calls it, and logs the error. With NewEphemeral it does nothing.
func (g *Guard) RunOnce(ctx context.Context) (keys int, err error) {
	if g.pool == nil {
		return 0, nil
	}
	begun := time.Now()
	for {
		n, unfinished, err := g.cleanBatch(ctx, g.sql.clean, g.c.CleanupBatch, g.c.KeepExpired.Microseconds())
		if err != nil {
			return keys, fmt.Errorf("remove expired keys: %w", err)
		}
		if unfinished > 0 {
			g.c.Logger.Warn("unfinished requests expired: their steps are committed, but they never had an answer", "requests", unfinished)
		}
		if keys += n; n < g.c.CleanupBatch {
			break
		}
	}
	for {
		n, _, err := g.cleanBatch(ctx, g.sql.cleanExpired, g.c.CleanupBatch)
		if err != nil {
			return keys, fmt.Errorf("remove copies of expired keys: %w", err)
		}
		if n < g.c.CleanupBatch {
			break
		}
	}
	if keys > 0 && g.c.Observer.OnCleaned != nil {
		g.c.Observer.OnCleaned(keys, time.Since(begun))
	}
	return keys, nil
}

func (g *Guard) cleanBatch(ctx context.Context, sql string, args ...any) (n, unfinished int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = g.pool.QueryRow(ctx, sql, args...).Scan(&n, &unfinished)
	return n, unfinished, err
}
