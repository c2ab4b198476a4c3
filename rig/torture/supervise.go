//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// superviseEvery is how often a supervisor looks.
const superviseEvery = 100 * time.Millisecond

// reviver is a server that is started again if it has ended although nobody stopped it. It reports how it ended.
type reviver interface {
	Revive(ctx context.Context) (ended, err error)
}

// supervise does for PgBouncer what a service manager does: PgBouncer 1.18 ends by a FATAL of its own under
// cancellations (github.com/pgbouncer/pgbouncer/issues/801). That is a fault too, though nobody drew it, and
// the library must keep its promises meanwhile. The returned function ends it, and returns the ends that it saw.
func (r *run) supervise(ctx context.Context, server reviver) (finish func() []string) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan []string, 1)
	go func() {
		var ends []string
		for sleep(ctx, superviseEvery) {
			ended, err := server.Revive(ctx)
			if ended != nil {
				ends = append(ends, lastLine(ended.Error()))
				r.say("PgBouncer is started again: %v", ended)
			}
			if err != nil && ctx.Err() == nil {
				ends = append(ends, fmt.Sprintf("could not be started again: %v", err))
			}
		}
		done <- ends
	}()
	return func() []string {
		cancel()
		return <-done
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
