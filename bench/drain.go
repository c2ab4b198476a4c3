package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"time"
)

const (
	drainByHand    = "drain against a hand-written relay at its best setting"
	drainByBare    = "drain against a bare read-and-produce loop"
	drainLarge     = "drain of events of 10 KB against a bare read-and-produce loop"
	drainLargeSize = 10_000 // bytes
)

var (
	drainFigures      = []string{drainByHand, drainByBare}
	drainLargeFigures = []string{drainLarge}
)

// measureDrain empties the same backlog in three ways, in turns: the hand-written relay, the bare loop and our relay. Every
// run of the last two gets its own copy of one database, so that neither finds pages or hint bits of the other.
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

	var byHand, byHandBest, bare, ours samples
	for round := range e.rounds {
		runs := []func() error{
			func() error { return e.drainByHand(ctx, r, topic, usualTimeout, &byHand) },
			func() error { return e.drainByHand(ctx, r, topic, bestTimeout, &byHandBest) },
			func() error { return e.drainCopy(ctx, r, backlog, topic, "bare loop", ".bare", e.drain, &bare, round) },
			func() error { return e.drainCopy(ctx, r, backlog, topic, "relay", "", e.drain, &ours, round) },
		}
		if round%2 == 1 {
			runs[2], runs[3] = runs[3], runs[2]
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return err
			}
		}
		r.progress("drain %d/%d: by hand %s (%s), bare loop %s, relay %s events/s", round+1, e.rounds, number(byHand.speed[round]), number(byHandBest.speed[round]), number(bare.speed[round]), number(ours.speed[round]))
	}
	byHand.report(r, "drain, hand-written relay")
	byHandBest.report(r, "drain, hand-written relay, BatchTimeout 1 ms")
	bare.report(r, "drain, bare loop")
	ours.report(r, "drain, relay")
	r.info("drain against a hand-written relay, BatchTimeout 10 ms", median(ratios(ours.speed, byHand.speed)), "x")
	r.goal(drainByHand, median(ratios(ours.speed, byHandBest.speed)), "x", atLeast(8))
	r.goal(drainByBare, median(ratios(ours.speed, bare.speed)), "x", atLeast(0.95))
	return nil
}

// measureDrainLarge is measureDrain with events of 10 KB, by the bare loop and our relay.
func measureDrainLarge(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	events := e.drain / 10
	r.progress("drain: writing a backlog of %d events of %d bytes", events, drainLargeSize)
	backlog, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	of := usual(topic)
	of.payload = drainLargeSize
	if err := e.writeShaped(ctx, backlog, of, events); err != nil {
		return err
	}
	if err := e.analyze(ctx, backlog); err != nil {
		return err
	}
	var bare, ours samples
	for round := range e.rounds {
		runs := []func() error{
			func() error {
				return e.drainCopy(ctx, r, backlog, topic, "bare loop", ".bare", events, &bare, round)
			},
			func() error { return e.drainCopy(ctx, r, backlog, topic, "relay", "", events, &ours, round) },
		}
		if round%2 == 1 {
			runs[0], runs[1] = runs[1], runs[0]
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return err
			}
		}
		r.progress("drain of 10 KB %d/%d: bare loop %s, relay %s events/s", round+1, e.rounds, number(bare.speed[round]), number(ours.speed[round]))
	}
	bare.report(r, "drain of 10 KB, bare loop")
	ours.report(r, "drain of 10 KB, relay")
	r.goal(drainLarge, median(ratios(ours.speed, bare.speed)), "x", atLeast(0.95))
	return nil
}

// samples are the runs of one contestant: events a second, and CPU time in microseconds an event.
type samples struct{ speed, self, postgres []float64 }

// take makes one run of n events.
func (s *samples) take(e *env, n int, run func() (speed float64, err error)) error {
	before := e.spent()
	speed, err := run()
	if err != nil {
		return err
	}
	self, postgres := e.spent().since(before, n)
	s.add(speed, self, postgres)
	return nil
}

func (s *samples) add(speed, self, postgres float64) {
	s.speed, s.self, s.postgres = append(s.speed, speed), append(s.self, self), append(s.postgres, postgres)
}

func (s *samples) report(r *report, name string) {
	r.info(name, median(s.speed), "events/s")
	if median(s.postgres) > 0 {
		r.info(name+": CPU time of its process", median(s.self), "µs an event")
		r.info(name+": CPU time of Postgres", median(s.postgres), "µs an event")
	}
}

func (e *env) drainByHand(ctx context.Context, r *report, topic string, batchTimeout time.Duration, results *samples) error {
	database, err := e.handwrittenSetUp(ctx, topic, e.handwritten)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	return e.exactly(ctx, r, topic, e.handwritten, "hand-written relay", func() error {
		return results.take(e, e.handwritten, func() (float64, error) { return e.handwrittenDrain(ctx, database, e.handwritten, batchTimeout) })
	})
}

// drainCopy drains a copy of the backlog by the bare loop or the relay. The last round of each is profiled on demand.
func (e *env) drainCopy(ctx context.Context, r *report, backlog, topic, who, profileSuffix string, events int, results *samples, round int) error {
	database, err := e.database(ctx, backlog)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	if e.options.cpuProfile != "" && round == e.rounds-1 {
		done, err := startProfile(e.options.cpuProfile + profileSuffix)
		if err != nil {
			return err
		}
		defer done()
	}
	return e.exactly(ctx, r, topic, events, who, func() error {
		return results.take(e, events, func() (float64, error) {
			switch who {
			case "relay":
				return e.relayDrain(ctx, database, events)
			case byFranz:
				return e.drainWith(ctx, newFranzRelay, database, 1, 0, events)
			}
			return e.bareDrain(ctx, database, events)
		})
	})
}

// startProfile writes a CPU profile until done is called.
func startProfile(path string) (done func(), err error) {
	file, err := os.Create(path)
	if err == nil {
		err = pprof.StartCPUProfile(file)
	}
	if err != nil {
		return nil, fmt.Errorf("write the profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close() // a profile that could not be written is seen when it is read
	}, nil
}

// analyze does what autovacuum does within a minute after a backlog has grown. So a plan does not depend on whether that
// minute was within the run.
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
