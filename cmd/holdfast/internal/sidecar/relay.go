package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/probe"
	"github.com/holdfast-go/holdfast/relay"
)

// Pauses before the relay of a database is started again, where others go on meanwhile.
const (
	restartFirst = time.Second
	restartMost  = time.Minute
)

// restartPause doubles with each end of a relay, and is what it was at first after one that ran for long.
func restartPause(ends int, ran time.Duration) (pause time.Duration, counted int) {
	if ran > restartMost {
		ends = 0
	}
	return min(restartFirst<<min(ends, 10), restartMost), ends + 1
}

// databaseRelay is the relay of one database of the process. Many goroutines may ask for its health.
type databaseRelay struct {
	name   string
	make   func() (*relay.Relay, error)
	logger *slog.Logger

	mu      sync.Mutex
	current *relay.Relay
	again   time.Duration // until it is started again; 0 while it runs
}

// next makes the relay that run runs. An error means that its configuration is wrong.
func (d *databaseRelay) next() error {
	r, err := d.make()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current, d.again = r, 0
	return nil
}

// run publishes until ctx is done. An error means that waiting would not help.
func (d *databaseRelay) run(ctx context.Context) error { return d.current.Run(ctx) }

// runAgain publishes until ctx is done, and starts anew after an error: a process that ended would stop the relays of other
// databases.
func (d *databaseRelay) runAgain(ctx context.Context) error {
	ends := 0
	for {
		begun := time.Now()
		err := d.run(ctx)
		if err == nil {
			return nil
		}
		var pause time.Duration
		pause, ends = restartPause(ends, time.Since(begun))
		d.logger.Error("relay ended, will start again", "error", err, "again_in", pause)
		d.mu.Lock()
		d.again = pause
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err := d.next(); err != nil {
			return err
		}
	}
}

// health is what the relay says of itself. One that will be started again is live: a new process would do no more.
func (d *databaseRelay) health(ctx context.Context) probe.Health {
	d.mu.Lock()
	current, again := d.current, d.again
	d.mu.Unlock()
	said := current.Health(ctx)
	h := probe.Health{
		Live:    said.Live,
		Ready:   said.Ready,
		Reasons: append([]string{}, said.Reasons...),
	}
	if again > 0 {
		h.Live = true
		h.Reasons = append(h.Reasons, fmt.Sprintf("it is started again within %s", again))
	}
	return h
}
