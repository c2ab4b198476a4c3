package idempotency

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file bounds how many keys a principal has (Config.MaxKeys). A count is kept in the process for a while, and new keys are
// added to it: so the table is read seldom, and what other nodes store is seen a little later. Nobody is refused for keys that were
// added, since their requests may have stored nothing: then the table is read again.

const (
	// countEvery is how long a count of a principal's keys is believed.
	countEvery = 30 * time.Second

	// maxCounts bounds how many principals' counts are kept.
	maxCounts = 10_000
)

// keyCounts are the counts of the scopes that new keys came from lately.
type keyCounts struct {
	mu sync.Mutex
	of map[string]keyCount
}

type keyCount struct {
	keys  int
	at    time.Time // when they were counted
	begun int       // new keys since; a request that stores nothing leaves none
}

// take takes room for one more key of a scope. known is false if the keys have to be counted first.
func (kc *keyCounts) take(scope string, most int, now time.Time) (room, known bool) {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	c, known := kc.of[scope]
	if !known || now.Sub(c.at) >= countEvery {
		return false, false
	}
	if c.keys >= most {
		return false, true
	}
	if c.keys+c.begun >= most {
		return false, false
	}
	c.begun++
	kc.of[scope] = c
	return true, true
}

// counted notes how many keys a scope has.
func (kc *keyCounts) counted(scope string, keys int, now time.Time) {
	kc.mu.Lock()
	defer kc.mu.Unlock()
	if len(kc.of) >= maxCounts {
		for other, c := range kc.of {
			if now.Sub(c.at) >= countEvery {
				delete(kc.of, other)
			}
		}
		if len(kc.of) >= maxCounts {
			clear(kc.of) // They are counted again.
		}
	}
	if kc.of == nil {
		kc.of = map[string]keyCount{}
	}
	kc.of[scope] = keyCount{keys: keys, at: now}
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// full reports whether a request's principal has as many keys as it may, so that a new one is not taken.
func (rt *route) full(ctx context.Context, db rowQuerier, req *request) (bool, error) {
	most := rt.g.c.MaxKeys
	if most <= 0 || req.info.Key == "" || rt.o.Scope != ScopePrincipal || rt.g.pool == nil {
		return false, nil
	}
	room, known := rt.g.keys.take(req.scope, most, time.Now())
	if known {
		return !room, nil
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var keys int
	if err := db.QueryRow(ctx, rt.g.sql.countKeys, req.scope, int32(most)).Scan(&keys); err != nil {
		return false, fmt.Errorf("%w: count the principal's keys: %w", errNotBegun, err)
	}
	rt.g.keys.counted(req.scope, keys, time.Now())
	room, _ = rt.g.keys.take(req.scope, most, time.Now())
	return !room, nil
}
