package main

import (
	"context"
	"time"
)

const (
	idleCPU        = "idle relay, share of a core"
	idleStatements = "idle relay, statements"
)

var idleFigures = []string{idleCPU, idleStatements}

// measureIdle runs a relay on an empty log in a process of its own. Its CPU time comes from getrusage, and its statements are
// counted as they are sent.
func measureIdle(ctx context.Context, e *env, r *report) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	c, err := e.startChild(childOptions{database: database})
	if err != nil {
		return err
	}
	defer c.stop()
	r.progress("idle: a relay with nothing to do, for %v", e.idle)
	if err := pause(ctx, 3*time.Second); err != nil { // it claims lanes, and its polling slows down
		return err
	}
	began := time.Now()
	before, err := c.ask()
	if err != nil {
		return err
	}
	if err := pause(ctx, e.idle); err != nil {
		return err
	}
	after, err := c.ask()
	if err != nil {
		return err
	}
	span := time.Since(began).Seconds()
	if after.cpu > 0 {
		r.goal(idleCPU, 100*(after.cpu-before.cpu).Seconds()/span, "%", below(1))
	}
	r.goal(idleStatements, float64(after.statements-before.statements)/span, "a second", atMost(15))
	return c.stop()
}

func pause(ctx context.Context, span time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(span):
		return nil
	}
}
