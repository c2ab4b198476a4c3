package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
)

// idleLanes are the numbers of lanes that an idle relay is measured with: the default, and many.
var idleLanes = []int{8, 64}

func idleCPU(lanes int) string { return fmt.Sprintf("idle relay of %d lanes, share of a core", lanes) }

func idleStatements(lanes int) string {
	return fmt.Sprintf("idle relay of %d lanes, statements", lanes)
}

var idleFigures = func() (names []string) {
	for _, lanes := range idleLanes {
		names = append(names, idleCPU(lanes), idleStatements(lanes))
	}
	return names
}()

// measureIdle runs a relay on an empty log in a process of its own. Its CPU time comes from getrusage, and its statements are
// counted as they are sent.
func measureIdle(ctx context.Context, e *env, r *report) error {
	for _, lanes := range idleLanes {
		if err := e.idleWith(ctx, r, lanes); err != nil {
			return fmt.Errorf("%d lanes: %w", lanes, err)
		}
	}
	return nil
}

func (e *env) idleWith(ctx context.Context, r *report, lanes int) error {
	database, err := e.migratedWith(ctx, holdfast.SchemaConfig{Lanes: lanes})
	if err != nil {
		return err
	}
	c, err := e.startChild(childOptions{database: database})
	if err != nil {
		return err
	}
	defer c.stop()
	r.progress("idle: a relay of %d lanes with nothing to do, for %v", lanes, e.idle)
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
		r.goal(idleCPU(lanes), 100*(after.cpu-before.cpu).Seconds()/span, "%", atMost(0.5))
	}
	r.goal(idleStatements(lanes), float64(after.statements-before.statements)/span, "a second", atMost(15))
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
