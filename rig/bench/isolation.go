package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	drainRepeatable   = "drain of a backlog of REPEATABLE READ, against READ COMMITTED"
	drainSerializable = "drain of a backlog of SERIALIZABLE, against READ COMMITTED"
)

var isolationFigures = []string{drainRepeatable, drainSerializable}

// measureIsolation drains backlogs of transactions of one event, which differ in the isolation of their writers only. Each
// level takes its turn in each round.
func measureIsolation(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	backlogs := map[pgx.TxIsoLevel]string{}
	for _, level := range levels {
		r.progress("isolation: writing a backlog of %d transactions of %s", e.isolation, level)
		if backlogs[level], err = e.migrated(ctx); err != nil {
			return err
		}
		if err := e.writeSingly(ctx, backlogs[level], topic, level, e.isolation); err != nil {
			return err
		}
		if err := e.analyze(ctx, backlogs[level]); err != nil {
			return err
		}
	}
	runs := map[pgx.TxIsoLevel]*samples{}
	for round := range e.rounds {
		for i := range levels {
			level := levels[(i+round)%len(levels)]
			if runs[level] == nil {
				runs[level] = &samples{}
			}
			if err := e.drainSingles(ctx, r, backlogs[level], topic, runs[level]); err != nil {
				return err
			}
		}
		r.progress("isolation %d/%d: %s, %s, %s events/s", round+1, e.rounds, number(runs[levels[0]].speed[round]), number(runs[levels[1]].speed[round]), number(runs[levels[2]].speed[round]))
	}
	for _, level := range levels {
		runs[level].report(r, fmt.Sprintf("drain, one event a transaction, %s", level))
	}
	r.ratio(drainRepeatable, runs[pgx.RepeatableRead].speed, runs[pgx.ReadCommitted].speed, "events/s", atLeast(0.8))
	r.ratio(drainSerializable, runs[pgx.Serializable].speed, runs[pgx.ReadCommitted].speed, "events/s", atLeast(0.8))
	return nil
}

// drainSingles drains a copy of a backlog.
func (e *env) drainSingles(ctx context.Context, r *report, backlog, topic string, results *samples) error {
	database, err := e.database(ctx, backlog)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	return e.exactly(ctx, r, topic, e.isolation, "relay", func() error {
		return results.take(e, e.isolation, func() (float64, error) { return e.relayDrain(ctx, database, e.isolation) })
	})
}
