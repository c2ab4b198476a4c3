package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file keeps heads active and followers dormant where nothing else does. A head can be dormant if a person closed the letter
// before it. Followers can be active if Store added them and nothing of their key was settled since, because the head fails or a
// letter holds the key.

const (
	// sweepEvery is the time between sweeps, at least. A sweep that takes long comes less often.
	sweepEvery = 5 * time.Second

	// sweepAtLeast is the time between sweeps, at most.
	sweepAtLeast = 5 * time.Minute
)

// sweeper resumes heads and makes followers dormant.
type sweeper struct {
	*env
	runner *runner
}

func (sw *sweeper) sweepLoop(ctx context.Context) error {
	wait := sweepEvery
	for {
		if loop.Sleep(ctx, time.Duration((0.75+0.5*sw.random())*float64(wait))) != nil {
			return nil
		}
		begun := time.Now()
		if err := sw.sweep(ctx); err != nil && ctx.Err() == nil {
			sw.transient(err)
		}
		wait = loop.Rest(time.Since(begun), 100, sweepEvery, sweepAtLeast)
	}
}

func (sw *sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loop.Patience)
	defer cancel()
	tag, err := sw.pool.Exec(ctx, sw.sql.sweep, sw.c.Consumer)
	if err != nil {
		return fmt.Errorf("resume heads: %w", err)
	}
	if tag.RowsAffected() > 0 {
		sw.wake()
	}
	return sw.deferFollowers(ctx)
}

// activeKey is a key with more than its head active.
type activeKey struct{ Topic, Key string }

// deferFollowers makes followers dormant. If a worker is handling the key, that worker or the next sweep does it.
func (sw *sweeper) deferFollowers(ctx context.Context) error {
	rows, _ := sw.pool.Query(ctx, sw.sql.active, sw.c.Consumer) // CollectRows returns its error.
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[activeKey])
	if err != nil {
		return fmt.Errorf("look for followers that are active: %w", err)
	}
	for _, k := range keys {
		for more := true; more; {
			err := sw.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
				more, err = sw.deferSome(ctx, tx, k)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// deferSome makes some followers of a key dormant, and reports whether it found any.
func (sw *sweeper) deferSome(ctx context.Context, tx pgx.Tx, k activeKey) (found bool, err error) {
	var mine bool
	if err := tx.QueryRow(ctx, sw.sql.tryLock, int32(lane.KeyClass), sw.keyNumber(k.Topic, k.Key)).Scan(&mine); err != nil {
		return false, fmt.Errorf("lock the key's queue: %w", err)
	}
	if !mine {
		return false, nil
	}
	tag, err := tx.Exec(ctx, sw.sql.deferFollowers, sw.c.Consumer, k.Topic, k.Key)
	if err != nil {
		return false, fmt.Errorf("defer followers: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}
