package relay

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-go/holdfast/internal/backlog"
)

// Backlog is what has been written and not yet published, for gauges. While relays keep up, Oldest is less than a
// second and nothing waits.
type Backlog struct {
	Lanes         int           // lanes that have events which no relay has published and saved
	Oldest        time.Duration // since Event.Time of the oldest one that a lane reads next; 0 if there is none, or if its time is in the future
	Waiting       int           // events that wait in relays, outside the log
	OldestWaiting time.Duration // how long the first of them has waited; 0 if none does
	Scheduled     int           // lanes with events that have fallen due and are not in the log yet
}

// Backlog returns what is not published in all lanes, whichever relay reads them. Any relay may be asked, running or not,
// from many goroutines. It looks up at most 20 events of each lane, and of each transaction that is in flight, by their indexes, and
// counts what waits, so it is cheap enough for a call every 15 s. Every node sees the same figures.
func (r *Relay) Backlog(ctx context.Context) (Backlog, error) {
	sum, err := backlog.Read(ctx, r.log, r.c.Schema, math.MaxInt64)
	if err != nil {
		return Backlog{}, fmt.Errorf("read the backlog: %w", err)
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Backlog{sum.Lanes, seconds(sum.Oldest), sum.Waiting, seconds(sum.OldestWaiting), sum.Scheduled}, nil
}
