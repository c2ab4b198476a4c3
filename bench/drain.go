package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

const (
	drainByHand = "drain against a hand-written relay"
	drainByBare = "drain against a bare read-and-produce loop"
)

var drainFigures = []string{drainByHand, drainByBare}

// measureDrain empties the same backlog by three means in turns: the hand-written relay, the bare loop and ours. Every
// run of the last two gets its own copy of one database, so that neither finds pages or hint bits that the other has
// left.
func measureDrain(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("drain: writing a backlog of %d events", e.drain)
	backlog, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	if err := e.writeBacklog(ctx, backlog, topic, e.drain); err != nil {
		return err
	}
	if err := e.analyze(ctx, backlog); err != nil {
		return err
	}

	var byHand, bare, ours []float64
	for round := range e.rounds {
		runs := []func() error{
			func() error { return e.drainByHand(ctx, topic, &byHand) },
			func() error { return e.drainCopy(ctx, backlog, topic, "bare loop", ".bare", &bare, round) },
			func() error { return e.drainCopy(ctx, backlog, topic, "relay", "", &ours, round) },
		}
		if round%2 == 1 {
			runs[1], runs[2] = runs[2], runs[1]
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return err
			}
		}
		r.progress("drain %d/%d: by hand %s, bare loop %s, relay %s events/s", round+1, e.rounds, number(byHand[round]), number(bare[round]), number(ours[round]))
	}
	r.info("drain, hand-written relay", median(byHand), "events/s")
	r.info("drain, bare loop", median(bare), "events/s")
	r.info("drain, relay", median(ours), "events/s")
	r.goal(drainByHand, median(ratios(ours, byHand)), "x", atLeast(12))
	r.goal(drainByBare, median(ratios(ours, bare)), "x", atLeast(0.8))
	return nil
}

func (e *env) drainByHand(ctx context.Context, topic string, results *[]float64) error {
	database, err := e.handwrittenSetUp(ctx, topic, e.handwritten)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	return e.exactly(ctx, topic, e.handwritten, "hand-written relay", func() error {
		speed, err := e.handwrittenDrain(ctx, database, e.handwritten)
		*results = append(*results, speed)
		return err
	})
}

// drainCopy drains a copy of the backlog by the bare loop or the relay. The last round of each is profiled on demand.
func (e *env) drainCopy(ctx context.Context, backlog, topic, who, profileSuffix string, results *[]float64, round int) error {
	database, err := e.database(ctx, backlog)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	var profile io.Writer
	if e.options.cpuProfile != "" && round == e.rounds-1 {
		file, err := os.Create(e.options.cpuProfile + profileSuffix)
		if err != nil {
			return fmt.Errorf("create the profile: %w", err)
		}
		defer file.Close()
		profile = file
	}
	return e.exactly(ctx, topic, e.drain, who, func() (err error) {
		var speed float64
		if who == "relay" {
			speed, err = e.relayDrain(ctx, database, e.drain, profile)
		} else {
			speed, err = e.bareDrain(ctx, database, topic, e.drain, profile)
		}
		*results = append(*results, speed)
		return err
	})
}

// analyze does what autovacuum does within a minute of a backlog's growing, so that a plan does not depend on whether
// that minute fell into the run.
func (e *env) analyze(ctx context.Context, database string) error {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "analyze"); err != nil {
		return fmt.Errorf("analyze the backlog: %w", err)
	}
	return nil
}
