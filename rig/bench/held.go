package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const heldDrain = "drain beside a transaction held open"

var heldFigures = []string{heldDrain}

// measureHeld drains a backlog with and without another session's transaction that has written and stays open from before
// the first event until after the last. Such a transaction stops vacuum, and every reader that waits for the oldest
// transaction. It is in the log's own database, where its snapshot does most harm.
func measureHeld(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	var with, without []float64
	for round := range e.rounds {
		pair := []bool{false, true}
		if round%2 == 1 {
			pair = []bool{true, false}
		}
		for _, held := range pair {
			speed, err := e.drainHeld(ctx, r, topic, held)
			if err != nil {
				return err
			}
			if held {
				with = append(with, speed)
			} else {
				without = append(without, speed)
			}
		}
		r.progress("held transaction %d/%d: without %s, with %s events/s", round+1, e.rounds, number(without[round]), number(with[round]))
	}
	r.info("drain, no other transaction", median(without), "events/s")
	r.info("drain, one transaction held open", median(with), "events/s")
	r.ratio(heldDrain, with, without, "events/s", atLeast(0.95))
	return nil
}

func (e *env) drainHeld(ctx context.Context, r *report, topic string, held bool) (speed float64, err error) {
	database, err := e.migrated(ctx)
	if err != nil {
		return 0, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "create table business (id bigint)"); err != nil {
		return 0, err
	}
	if held {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) // its snapshot stays as well
		if err != nil {
			return 0, err
		}
		defer tx.Rollback(context.WithoutCancel(ctx))
		if _, err := tx.Exec(ctx, "insert into business values (1)"); err != nil {
			return 0, fmt.Errorf("hold a transaction open: %w", err)
		}
	}
	if err := e.writeBacklog(ctx, database, topic, e.held); err != nil {
		return 0, err
	}
	if err := e.analyze(ctx, database); err != nil {
		return 0, err
	}
	err = e.exactly(ctx, r, topic, e.held, "relay", func() (err error) {
		speed, err = e.relayDrain(ctx, database, e.held)
		return err
	})
	return speed, err
}
