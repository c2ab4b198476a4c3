package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// BlockedKey is a key of which events wait in `stored`: behind one that failed, for a node that knows their type, or for
// a person to decide on a dead letter.
type BlockedKey struct {
	Topic, Key string
	Events     int           // that wait, the head included
	Since      time.Time     // when the head was stored
	For        time.Duration // since then, by the database's clock

	// The head: the event that the others wait for.
	Source, ID, Type string
	Attempts         int       // tries that failed
	LastError        string    // of the last; "" where none failed
	NextAt           time.Time // when it is tried again; zero where something has to happen first

	// Letter is the dead letter that holds the key until it is replayed or discarded; 0 where none does.
	Letter int64
}

// Blocked returns the keys that wait, those that wait longest first, up to limit of them. Events without a key are not
// among them: nothing waits behind them. It reads all that is stored for the consumer, so it is for people and for
// probes that come every minute, not for every event.
func (in *Inbox) Blocked(ctx context.Context, limit int) ([]BlockedKey, error) {
	if limit < 1 {
		return nil, fmt.Errorf("blocked keys: limit is %d: it must be at least 1", limit)
	}
	rows, err := in.pool.Query(ctx, in.sql.blocked, in.c.Consumer, int32(min(limit, 1<<30)))
	if err != nil {
		return nil, fmt.Errorf("read blocked keys: %w", err)
	}
	keys, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k BlockedKey, err error) {
		var micros int64
		var next *time.Time
		err = row.Scan(&k.Topic, &k.Key, &k.Events, &k.Since, &micros, &k.Source, &k.ID, &k.Type, &k.Attempts, &k.LastError, &next, &k.Letter)
		k.For = time.Duration(micros) * time.Microsecond
		if next != nil {
			k.NextAt = *next
		}
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("read blocked keys: %w", err)
	}
	return keys, nil
}

// Waiting is how much of a consumer waits in `stored`: what a gauge shows.
type Waiting struct {
	Events     int           // all of them
	Keys       int           // topics and keys that wait; events without a key are not counted
	Oldest     time.Duration // how long the oldest event has waited; 0 where none does
	Undeclared int           // events of types that no node of the consumer has declared for two minutes: nobody works them
}

// Waiting returns how much waits for the consumer. It reads all that is stored for it, as Blocked does.
func (in *Inbox) Waiting(ctx context.Context) (Waiting, error) {
	var w Waiting
	var micros int64
	if err := in.pool.QueryRow(ctx, in.sql.waiting, in.c.Consumer).Scan(&w.Events, &w.Keys, &micros, &w.Undeclared); err != nil {
		return Waiting{}, fmt.Errorf("read what waits: %w", err)
	}
	w.Oldest = time.Duration(micros) * time.Microsecond
	return w, nil
}
