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
	drainFigures      = []string{drainByHand, drainByBare, costRelay}
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
			func() error { return e.drainCopy(ctx, r, backlog, topic, bareLoop, e.drain, &bare, round) },
			func() error { return e.drainCopy(ctx, r, backlog, topic, usualRelay, e.drain, &ours, round) },
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
	r.ratio("drain against a hand-written relay, BatchTimeout 10 ms", ours.speed, byHand.speed, "events/s", noGoal)
	r.ratio(drainByHand, ours.speed, byHandBest.speed, "events/s", atLeast(8))
	r.ratio(drainByBare, ours.speed, bare.speed, "events/s", atLeast(0.95))
	r.cost(costRelay, ours, bare)
	return nil
}

// measureDrainLarge is measureDrain with events of 10 KB, by the bare loop and our relay.
func measureDrainLarge(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	of := usual(topic)
	of.payload = drainLargeSize
	bare, ours, err := e.drainInTurns(ctx, r, "drain of 10 KB", topic, of, e.drain/10, bareLoop, usualRelay)
	if err != nil {
		return err
	}
	bare.report(r, "drain of 10 KB, bare loop")
	ours.report(r, "drain of 10 KB, relay")
	r.ratio(drainLarge, ours.speed, bare.speed, "events/s", atLeast(0.95))
	return nil
}

// drainInTurns writes a backlog, and has two contestants drain copies of it in turns. what is the name of the measurement.
func (e *env) drainInTurns(ctx context.Context, r *report, what, topic string, of shape, events int, one, other contestant) (ofOne, ofOther samples, err error) {
	r.progress("%s: writing a backlog of %d events of %d bytes", what, events, of.payload)
	backlog, err := e.migrated(ctx)
	if err != nil {
		return ofOne, ofOther, err
	}
	if err := e.writeShaped(ctx, backlog, of, events); err != nil {
		return ofOne, ofOther, err
	}
	if err := e.analyze(ctx, backlog); err != nil {
		return ofOne, ofOther, err
	}
	for round := range e.rounds {
		runs := []func() error{
			func() error { return e.drainCopy(ctx, r, backlog, topic, one, events, &ofOne, round) },
			func() error { return e.drainCopy(ctx, r, backlog, topic, other, events, &ofOther, round) },
		}
		if round%2 == 1 {
			runs[0], runs[1] = runs[1], runs[0]
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return ofOne, ofOther, err
			}
		}
		r.progress("%s %d/%d: %s %s, %s %s events/s", what, round+1, e.rounds, one.name, number(ofOne.speed[round]), other.name, number(ofOther.speed[round]))
	}
	return ofOne, ofOther, nil
}

// contestant is a way to drain a backlog.
type contestant struct {
	name    string
	profile string // what the name of its CPU profile ends with
	drain   func(e *env, ctx context.Context, database string, events int) (speed float64, err error)
	count   func(e *env, ctx context.Context, topic string) (records int64, err error)
}

var (
	usualRelay = contestant{"relay", "", (*env).relayDrain, (*env).published}
	bareLoop   = contestant{"bare loop", ".bare", (*env).bareDrain, (*env).published}
)

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

// drainCopy has a contestant drain a copy of the backlog. The last round is profiled on demand.
func (e *env) drainCopy(ctx context.Context, r *report, backlog, topic string, who contestant, events int, results *samples, round int) error {
	database, err := e.database(ctx, backlog)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	if e.options.cpuProfile != "" && round == e.rounds-1 {
		done, err := startProfile(e.options.cpuProfile + who.profile)
		if err != nil {
			return err
		}
		defer done()
	}
	return e.exactlyBy(ctx, r, who.count, topic, events, who.name, func() error {
		return results.take(e, events, func() (float64, error) { return who.drain(e, ctx, database, events) })
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
