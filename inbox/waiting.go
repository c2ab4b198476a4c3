package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/plain"
)

// BlockedKey is a key with events in the table `stored`. They wait for one that failed, for a node that handles their type, or for a
// person to decide on a dead letter.
type BlockedKey struct {
	Topic, Key string
	Events     int           // how many wait, with the head
	Since      time.Time     // when the head was stored
	For        time.Duration // how long ago that was, by the database's clock

	// The head is the event that the others wait for.
	Source, ID, Type string
	Attempts         int       // attempts that failed
	LastError        string    // of the last attempt; "" if none failed
	NextAt           time.Time // of the next attempt; zero if something else has to happen first

	// Letter is the dead letter that holds the key until it is replayed or discarded; 0 if none does.
	Letter int64
}

// Blocked returns up to limit keys that wait, those that have waited longest first. It leaves out events without a key: nothing
// waits for them. It reads everything that is stored for the consumer. Use it for people and for probes each minute, not for
// every event.
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
		err = row.Scan(&k.Topic, &k.Key, &k.Events, (*plain.Micros)(&k.Since), &micros, &k.Source, &k.ID, &k.Type, &k.Attempts, &k.LastError, (*plain.Micros)(&k.NextAt), &k.Letter)
		k.For = time.Duration(micros) * time.Microsecond
		return k, err
	})
	if err != nil {
		return nil, fmt.Errorf("read blocked keys: %w", err)
	}
	return keys, nil
}

// Waiting is how much of a consumer waits in the table `stored`. It is meant for gauges.
type Waiting struct {
	Events     int           // all stored events
	Keys       int           // topics and keys that wait; events without a key are not counted
	Oldest     time.Duration // how long the oldest event has waited; 0 if none does
	Undeclared int           // events of types that no node has declared for two minutes: no node handles them
}

// Waiting returns how many events the consumer has stored, and for how long. It reads all of them, as Blocked does.
func (in *Inbox) Waiting(ctx context.Context) (Waiting, error) {
	var w Waiting
	var micros int64
	if err := in.pool.QueryRow(ctx, in.sql.waiting, in.c.Consumer).Scan(&w.Events, &w.Keys, &micros, &w.Undeclared); err != nil {
		return Waiting{}, fmt.Errorf("count stored events: %w", err)
	}
	w.Oldest = time.Duration(micros) * time.Microsecond
	return w, nil
}
