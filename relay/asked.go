package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	hash "github.com/holdfast-go/holdfast/internal/lane"
)

// A command that changes what is parked must own the lane meanwhile: waiting.Room does. They ask for a lane
// by an advisory lock, which ends with their transaction. Its owner then hands it over as at a stop, so that nothing is
// published twice for that. Nobody claims the lane until the lock is gone.

// askedEvery is how often a relay looks while somebody asks for lanes, so that they are handed over, and claimed again, soon.
const askedEvery = 100 * time.Millisecond

// handOverAsked hands over the lanes that somebody asks for.
func (r *Relay) handOverAsked(ctx context.Context) error {
	ctx, cancel := r.env.limit(ctx, max(r.c.Lease, 2*time.Second))
	defer cancel()
	rows, err := r.pool.Query(ctx, r.sql.In(readAsked), hash.HandOverClass, int64(uint32(hash.HandOverNumber(r.c.Schema, 0))))
	if err != nil {
		return fmt.Errorf("look for lanes that are asked for: %w", explain(err))
	}
	asked, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return fmt.Errorf("look for lanes that are asked for: %w", explain(err))
	}
	r.mu.Lock()
	r.asked = asked
	r.mu.Unlock()
	for _, l := range r.owned() {
		if slices.Contains(asked, int16(l.number)) && !l.stopping() {
			r.c.Logger.Info("lane handed over: somebody works on its parked events", "lane", l.number)
			r.stopLanes([]*lane{l})
		}
	}
	return nil
}

// claimEvery is how often the claims are looked at.
func (r *Relay) claimEvery() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.asked) > 0 {
		return askedEvery
	}
	return r.c.Lease / 3
}
