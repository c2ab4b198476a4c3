package relay

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/poolneed"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// A relay that starts says within seconds what keeps it from working, also while there is nothing to publish that would show it.

const (
	// reachTimeout bounds one question to the broker.
	reachTimeout = 3 * time.Second

	// leastConnections is how many connections a relay needs to work without waiting for itself.
	leastConnections = 4
)

// reachBroker asks until a broker answers, or ctx ends.
func (r *Relay) reachBroker(ctx context.Context) {
	p, ok := r.publisher.(publish.Pinger)
	if !ok {
		return
	}
	for tries := 1; ctx.Err() == nil; tries++ {
		asking, cancel := context.WithTimeout(ctx, reachTimeout)
		err := foreign.Error(p.Ping(asking))
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		if attrs, say := r.again("broker", "error", private.Text(err)); say {
			r.c.Logger.Warn("no broker answers yet: events wait in the log until one does; check the addresses, TLS and SASL", attrs...)
		}
		wait := time.NewTimer(max(holdPolicy.Delay(tries+3, r.env.chance()), 200*time.Millisecond))
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

// usePool says what the relay needs of its pool, until leave is called.
func (r *Relay) usePool() (leave func()) {
	pool, _ := r.pool.(plain.Pool)
	return poolneed.Enter(pool.Pool, "relay "+r.c.Name, leastConnections, r.c.Logger)
}
