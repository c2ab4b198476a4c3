package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/private"
)

// How segments are maintained. An exclusive lock that waits this long is granted even while many lanes read: readers come
// and go, and no new one passes a waiting exclusive lock. Without waiting it is never granted.
const (
	maintainEvery  = 3 * time.Second
	maintainLoaded = 250 * time.Millisecond // while the log is larger than one segment
	lockWaitMs     = 50
	turnFullEvery  = 10 * time.Second // to a segment that is not empty
	warnFullEvery  = time.Minute
)

// segments is what maintainSegments remembers from one look to the next.
type segments struct {
	pins               pins
	turnedAt, warnedAt time.Time // when no segment was empty
}

// maintainSegments empties segments that have been read and rotates to the next one when the current one is full. The owner
// of lane 0 does it for all relays.
func (r *Relay) maintainSegments(ctx context.Context) {
	pause := maintainEvery
	var known segments
	for {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = maintainEvery
		token, owner := r.ownsLaneZero()
		if !owner {
			known = segments{}
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		loaded, err := r.maintainSegmentsOnce(callCtx, token, &known)
		cancel()
		if err != nil && ctx.Err() == nil {
			r.giveUpIfFatal(err)
			if attrs, say := r.again("segments "+private.Kind(private.Text(err)), "error", private.Text(err)); say {
				r.c.Logger.Warn("segment maintenance failed, will retry", attrs...)
			}
		}
		if loaded {
			pause = maintainLoaded
		}
	}
}

func (r *Relay) ownsLaneZero() (token string, owner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, owner := r.lanes[0]
	if !owner {
		return "", false
	}
	return l.token, true
}

// maintainSegmentsOnce looks at the segments once. loaded says that more than the current segment holds events.
func (r *Relay) maintainSegmentsOnce(ctx context.Context, token string, known *segments) (loaded bool, err error) {
	rows, err := r.pool.Query(ctx, r.sql.In(readSegments))
	if err != nil {
		return false, fmt.Errorf("read segments: %w", err)
	}
	var current, n int
	var size int64
	var none bool
	var bytes []int64
	var empty []bool
	if _, err := pgx.ForEachRow(rows, []any{&current, &n, &size, &none}, func() error {
		bytes, empty = append(bytes, size), append(empty, none)
		return nil
	}); err != nil {
		return false, fmt.Errorf("read segments: %w", err)
	}
	now := r.env.now()
	for n := range bytes {
		if n == current || empty[n] {
			known.pins.emptied(n)
			continue
		}
		loaded = true
		if !known.pins.look(n, now) {
			continue
		}
		result, err := r.reclaim(ctx, n, token, known)
		if err != nil {
			return true, err
		}
		if result == "emptied" {
			bytes[n], empty[n] = 0, true
			known.pins.emptied(n)
		}
	}
	next, rotate := nextSegment(current, bytes, empty, r.c.SegmentBytes)
	if rotate && !empty[next] {
		if rotate = now.Sub(known.turnedAt) >= turnFullEvery; rotate {
			known.turnedAt = now
		}
		if now.Sub(known.warnedAt) >= warnFullEvery {
			known.warnedAt = now
			r.c.Logger.Warn("the log grows: no segment is empty; a lane waits, or a transaction has written for long", "current", current, "next", next, "bytes", bytes[next])
		}
	}
	if rotate {
		failpoint.Hit(failpoint.RelayRotating)
		if _, err := r.pool.Exec(ctx, r.sql.In(rotateSegments), next, current); err != nil {
			return true, fmt.Errorf("rotate segments: %w", err)
		}
		failpoint.Hit(failpoint.RelayRotated)
		loaded = true
	}
	return loaded, nil
}

// reclaim empties a segment if nobody seems to pin it, and says what became of that; "" if it did not try.
func (r *Relay) reclaim(ctx context.Context, segment int, token string, known *segments) (result string, err error) {
	rows, err := r.pool.Query(ctx, r.sql.In(readHolders), segment)
	if err != nil {
		return "", fmt.Errorf("read who holds segment %d: %w", segment, err)
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (holder string, err error) {
		err = row.Scan(&holder)
		return holder, err
	})
	if err != nil {
		return "", fmt.Errorf("read who holds segment %d: %w", segment, err)
	}
	if !known.pins.found(segment, holders, r.env.now()) {
		return "", nil
	}
	failpoint.Hit(failpoint.RelayReclaiming)
	if err := r.pool.QueryRow(ctx, r.sql.In(reclaimSegment), segment, token, lockWaitMs).Scan(&result); err != nil {
		return "", fmt.Errorf("reclaim segment %d: %w", segment, err)
	}
	failpoint.Hit(failpoint.RelayReclaimed)
	if observe := r.c.Observer.OnReclaimed; observe != nil {
		observe(segment, result)
	}
	return result, nil
}
