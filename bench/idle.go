package main

import (
	"context"
	"fmt"
	"time"
)

const (
	idleCPU        = "idle relay, share of a core"
	idleStatements = "idle relay, statements"
)

var idleFigures = []string{idleCPU, idleStatements}

// measureIdle runs a relay on an empty log in a process of its own. Its CPU time is getrusage's; its statements are the
// transactions that Postgres counts in its database, which nobody else is connected to: an idle relay's statements are
// each a transaction. Autovacuum's few are counted as the relay's.
func measureIdle(ctx context.Context, e *env, r *report) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	c, err := e.startChild(database)
	if err != nil {
		return err
	}
	defer c.stop()
	r.progress("idle: a relay with nothing to do, for %v", e.idle)
	if err := pause(ctx, 3*time.Second); err != nil { // it claims lanes, and its polling slows down
		return err
	}
	began := time.Now()
	_, cpuBefore, err := c.ask()
	if err != nil {
		return err
	}
	before, err := e.transactions(ctx, database)
	if err != nil {
		return err
	}
	if err := pause(ctx, e.idle); err != nil {
		return err
	}
	_, cpuAfter, err := c.ask()
	if err != nil {
		return err
	}
	after, err := e.transactions(ctx, database)
	if err != nil {
		return err
	}
	span := time.Since(began).Seconds()
	if cpuAfter > 0 {
		r.goal(idleCPU, 100*(cpuAfter-cpuBefore).Seconds()/span, "%", below(1))
	}
	r.goal(idleStatements, float64(after-before)/span, "a second", atMost(15))
	return c.stop()
}

// transactions counts a database's, from another one. Sessions report theirs about once a second.
func (e *env) transactions(ctx context.Context, database string) (n int64, err error) {
	err = e.admin.QueryRow(ctx, "select xact_commit + xact_rollback from pg_stat_database where datname = $1", database).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count transactions: %w", err)
	}
	return n, nil
}

func pause(ctx context.Context, span time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(span):
		return nil
	}
}
