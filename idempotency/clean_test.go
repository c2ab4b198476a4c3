package idempotency

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// No try gets a connection any more, so that trying again would last for ever.
func TestClean_AClosedPoolEndsRunWithAnErrorThatSaysSo(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"as it removes what has expired":     func(c *Config) { c.CleanupEvery, c.CompleteEvery = time.Millisecond, time.Hour },
		"as it looks for abandoned requests": func(c *Config) { c.CleanupEvery, c.CompleteEvery = time.Hour, time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.server.PoolOf(t, 2)
			g := b.guardOn(pool, change)
			b.service(g, b.charge, Route{Operation: "charge", Lease: time.Minute, Complete: func(r *http.Request, _ Info) *http.Request { return r }})
			done := make(chan error, 1)
			go func() { done <- g.Run(context.Background()) }()
			wait.Until(t, "it has begun", func() bool { return pool.Stat().AcquireCount() > 0 })
			pool.Close()
			select {
			case err := <-done:
				if !errors.Is(err, puddle.ErrClosedPool) || !strings.Contains(err.Error(), "close the pool after Run has returned") {
					t.Errorf("it ended with %v", err)
				}
			case <-time.After(wait.Limit()):
				t.Error("it runs for ever")
			}
		})
	}
}
