package idempotency

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Run removes expired keys, and what Config.KeepExpired kept of them, and completes requests that were abandoned
// (Route.Complete), until ctx is done; then it waits for those it runs, and returns nil. Any number of nodes may run it.
// What is expired is never replayed, whether Run runs or not. With NewEphemeral there is nothing to do but to wait.
func (g *Guard) Run(ctx context.Context) error {
	if g.pool == nil {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { g.complete(ctx) })
	for {
		if _, err := g.RunOnce(ctx); err != nil && ctx.Err() == nil {
			g.c.Logger.Warn("cleanup of idempotency keys waits for the database", "error", err)
		}
		if !pause(ctx, g.c.CleanupEvery/2+time.Duration(g.random()*float64(g.c.CleanupEvery))) {
			return nil
		}
	}
}

// RunOnce removes all keys that are expired now, in transactions of Config.CleanupBatch, and returns how many.
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
			g.c.Logger.Warn("requests that have done steps but were never answered have expired", "requests", unfinished)
		}
		if keys += n; n < g.c.CleanupBatch {
			break
		}
	}
	for {
		n, _, err := g.cleanBatch(ctx, g.sql.cleanExpired, g.c.CleanupBatch)
		if err != nil {
			return keys, fmt.Errorf("remove what was kept of expired keys: %w", err)
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
