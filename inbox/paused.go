package inbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file knows whether people have paused the consumer (waiting.Room.Pause, holdfast pause). Then no handler begins: events stay in Kafka
// or in `stored`. The statements see a paused key as they see one that a dead letter holds. Those that take in events from Kafka look
// for paused keys only if there may be one.

const (
	// pausesEvery is how often a node that runs Run or Consume looks.
	pausesEvery = time.Second

	// pausesKnown is how long a look counts. Then Receive looks itself, on a node that runs neither, and any key may be paused.
	pausesKnown = 2 * pausesEvery
)

// pauses is what this node saw last. Many goroutines may use it at once.
type pauses struct {
	*env
	dependencies *dependencies // the same look tells which of them are away
	mu           sync.Mutex
	known        bool // it has looked
	paused       bool
	keys         bool          // some key is paused
	at           time.Time     // when the last look began
	looking      bool          // somebody looks for Receive
	change       chan struct{} // closed when what running says changes
}

func newPauses(env *env) *pauses { return &pauses{env: env, change: make(chan struct{})} }

// running says whether handlers may begin, and gives a channel that is closed when that changes. Before the first look they may not.
func (ps *pauses) running() (bool, <-chan struct{}) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.known && !ps.paused, ps.change
}

// stopped says that the consumer is known to be paused: what has begun begins nothing more.
func (ps *pauses) stopped() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.paused
}

// noKey says that no key of the consumer was paused pausesKnown ago.
func (ps *pauses) noKey() bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.known && !ps.keys && time.Since(ps.at) < pausesKnown
}

// look asks the database.
func (ps *pauses) look(ctx context.Context, db rowQuerier) error {
	ctx, cancel := ps.bounded(ctx)
	defer cancel()
	began := time.Now()
	var paused, keys bool
	var away []string
	var until []int64
	if err := db.QueryRow(ctx, ps.sql.paused, ps.c.Consumer).Scan(&paused, &keys, &away, &until); err != nil {
		return fmt.Errorf("look whether the consumer is paused: %w", err)
	}
	ps.note(paused, keys, began)
	ps.dependencies.note(ctx, away, until, began)
	return nil
}

func (ps *pauses) note(paused, keys bool, at time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	was, before := ps.known, ps.known && !ps.paused
	changed := was && ps.paused != paused || !was && paused
	ps.known, ps.paused, ps.keys, ps.at = true, paused, keys, at
	if before != !paused {
		close(ps.change)
		ps.change = make(chan struct{})
	}
	switch {
	case changed && paused:
		ps.c.Logger.Info("consumer paused: no handler begins until it is resumed", "consumer", ps.c.Consumer)
	case changed:
		ps.c.Logger.Info("consumer resumed", "consumer", ps.c.Consumer)
	}
}

// watch looks again and again, until ctx ends. The error says what an operator has to do.
func (ps *pauses) watch(ctx context.Context) error {
	for {
		if err := ps.look(ctx, ps.pool); err == nil {
			ps.vitals.answered()
		} else if ctx.Err() == nil {
			if fix := ps.miswired(ctx, err); fix != nil {
				return fix
			}
			ps.transient(err)
		}
		if loop.Sleep(ctx, pausesEvery) != nil {
			return nil
		}
	}
}

// now says whether the consumer is paused, for an event that comes alone. It asks db if nobody has looked of late; others need not
// wait for that.
func (ps *pauses) now(ctx context.Context, db rowQuerier) (bool, error) {
	ps.mu.Lock()
	if known := ps.known; known && (ps.looking || time.Since(ps.at) < pausesKnown) {
		defer ps.mu.Unlock()
		return ps.paused, nil
	}
	ps.looking = true
	ps.mu.Unlock()
	err := ps.look(ctx, db)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.looking = false
	return ps.paused, err
}
