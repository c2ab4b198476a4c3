package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/internal/private"
)

// Dedupe keys of outbox.WriteOnce that have expired are removed this often, and so many at once.
const (
	expireEvery = 30 * time.Second
	expireMost  = 1_000

	// expireRest is the longest rest while more have expired, and the one between two looks whether lane 0 is owned.
	expireRest = 500 * time.Millisecond
)

// restExpiring is how long to rest after a call that removed so many keys in this time. While more have expired, a third of the time is
// work, also where services write thousands of keys a second.
func restExpiring(gone int, took time.Duration) time.Duration {
	if gone < expireMost {
		return expireEvery
	}
	return min(2*took, expireRest)
}

// expireDedupeKeys removes what has expired. The owner of lane 0 does it for all relays. No error of it ends the relay: keys that are
// remembered for longer do no harm to events.
func (r *Relay) expireDedupeKeys(ctx context.Context) {
	pause := expireRest
	for {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = expireEvery
		if _, owner := r.ownsLaneZero(); !owner {
			pause = expireRest
			continue
		}
		began := r.env.now()
		callCtx, cancel := context.WithTimeout(ctx, 10*time.Second)
		gone, err := r.expireDedupeKeysOnce(callCtx)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			if attrs, say := r.again("dedupe keys "+private.Kind(private.Text(err)), "error", private.Text(err)); say {
				r.c.Logger.Warn("removing expired dedupe keys failed, will retry", attrs...)
			}
		case err == nil:
			pause = restExpiring(gone, r.env.now().Sub(began))
		}
	}
}

func (r *Relay) expireDedupeKeysOnce(ctx context.Context) (gone int, err error) {
	if err := r.pool.QueryRow(ctx, r.sql.In(expireWrittenOnce), expireMost).Scan(&gone); err != nil {
		return 0, fmt.Errorf("remove expired dedupe keys: %w", err)
	}
	return gone, nil
}
