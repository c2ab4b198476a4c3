package relay

import (
	"context"
	"fmt"
	"time"
)

// Backlog is what has been written and not yet published, for gauges. While relays keep up, Oldest is less than a
// second and nothing is parked.
type Backlog struct {
	Lanes        int           // lanes that have events which no relay has published and saved
	Oldest       time.Duration // since Event.Time of the oldest one that a lane reads next; 0 if there is none, or if its time is in the future
	Parked       int           // events that wait in the queues of their keys, outside the log
	OldestParked time.Duration // how long the first of them has been parked; 0 if none is
	Scheduled    int           // lanes with events that have fallen due and are not in the log yet
}

// Backlog returns what is not published in all lanes, whichever relay reads them. Any relay may be asked, running or not,
// from many goroutines. It looks up one or a few events of each lane by their indexes, and counts what is parked, so it is
// cheap enough for a call every 15 s. Every node sees the same figures.
func (r *Relay) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var oldest, parked int64
	if err := r.pool.QueryRow(ctx, r.sql.In(readBacklog)).Scan(&b.Lanes, &oldest, &b.Parked, &parked, &b.Scheduled); err != nil {
		return Backlog{}, fmt.Errorf("read the backlog: %w", err)
	}
	b.Oldest, b.OldestParked = time.Duration(oldest)*time.Microsecond, time.Duration(parked)*time.Microsecond
	return b, nil
}
