package relay

import (
	"context"
	"fmt"
	"time"
)

// Backlog is what has been written and not published: what gauges show. While relays keep up, Oldest is less than a
// second and nothing is parked.
type Backlog struct {
	Lanes        int           // lanes that have events which no relay has published and saved
	Oldest       time.Duration // since Event.Time of the one that its lane reads next; 0 where there is none, or it lies ahead
	Parked       int           // events that wait in queues of their keys, beside the log
	OldestParked time.Duration // how long the first of them has been parked; 0 where none is
	Scheduled    int           // lanes with events that have fallen due and are not in the log yet
}

// Backlog returns what is not published, of all lanes, whichever relay reads them: it may be asked of any relay, running or not,
// from many goroutines. It finds the log's events by their indexes, one or a few of each lane, and counts what is
// parked. Something that runs every 15 s or so may call it; every node sees the same figures.
func (r *Relay) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var oldest, parked int64
	if err := r.pool.QueryRow(ctx, r.sql.In(readBacklog)).Scan(&b.Lanes, &oldest, &b.Parked, &parked, &b.Scheduled); err != nil {
		return Backlog{}, fmt.Errorf("read the backlog: %w", err)
	}
	b.Oldest, b.OldestParked = time.Duration(oldest)*time.Microsecond, time.Duration(parked)*time.Microsecond
	return b, nil
}
