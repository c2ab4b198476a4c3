package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
)

// idleLanes are the numbers of lanes that an idle relay is measured with: the default, and many.
var idleLanes = []int{8, 64}

func idleCPU(lanes int) string { return fmt.Sprintf("idle relay of %d lanes, share of a core", lanes) }

func idleAgainstBare(lanes int) string {
	return fmt.Sprintf("idle relay of %d lanes, CPU time against a bare loop of as many statements", lanes)
}

func idleStatements(lanes int) string {
	return fmt.Sprintf("idle relay of %d lanes, statements", lanes)
}

var idleFigures = func() (names []string) {
	for _, lanes := range idleLanes {
		names = append(names, idleCPU(lanes), idleAgainstBare(lanes), idleStatements(lanes))
	}
	return names
}()

// measureIdle runs a relay on an empty log in a process of its own. Its CPU time comes from getrusage, and its statements are
// counted as they are sent. Then another process runs beside it that sends as many statements, each of which does nothing: to wake up so often
// costs a share of a core by itself, which is the machine's.
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
	r.progress("idle: a relay of %d lanes with nothing to do, for %v, and as long beside a bare loop", lanes, e.idle)
	if err := pause(ctx, 3*time.Second); err != nil { // it claims lanes, and its polling slows down
		return err
	}
	alone, err := e.used(ctx, c)
	if err != nil {
		return err
	}
	if alone[0].share > 0 {
		r.goal(idleCPU(lanes), alone[0].share, "%", atMost(0.5))
	}
	r.goal(idleStatements(lanes), alone[0].statements, "a second", atMost(15))
	if alone[0].statements == 0 {
		return errors.New("the relay sent no statements")
	}
	bare, err := e.startChild(childOptions{database: database, bare: alone[0].statements})
	if err != nil {
		return err
	}
	defer bare.stop()
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	both, err := e.used(ctx, c, bare)
	if err != nil {
		return err
	}
	if both[1].share > 0 {
		r.info(fmt.Sprintf("a bare loop of as many statements as an idle relay of %d lanes, share of a core", lanes), both[1].share, "%")
		r.goal(idleAgainstBare(lanes), both[0].share/both[1].share, "x", atMost(1.5))
	}
	return errors.Join(c.stop(), bare.stop())
}

// idleUse is what a process used in a time: of a core, in %, and statements a second.
type idleUse struct{ share, statements float64 }

// used measures processes at the same time.
func (e *env) used(ctx context.Context, children ...*child) (uses []idleUse, err error) {
	before, began := make([]usage, len(children)), time.Now()
	for i, c := range children {
		if before[i], err = c.ask(); err != nil {
			return nil, err
		}
	}
	if err := pause(ctx, e.idle); err != nil {
		return nil, err
	}
	for i, c := range children {
		after, err := c.ask()
		if err != nil {
			return nil, err
		}
		span := time.Since(began).Seconds()
		uses = append(uses, idleUse{100 * (after.cpu - before[i].cpu).Seconds() / span, float64(after.statements-before[i].statements) / span})
	}
	return uses, nil
}

func pause(ctx context.Context, span time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(span):
		return nil
	}
}
