package main

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast"
)

const scaleLanes = 64

// fleets are how many relays share the lanes of a schema.
var fleets = []int{2, 4, 8}

func fleetFigure(relays int) string {
	return fmt.Sprintf("drain by %d relays on %d lanes, against one relay", relays, scaleLanes)
}

// spreads are backlogs that differ from the usual one in one number.
var spreads = []struct {
	figure             string
	keys               int
	topics, partitions int
}{
	{"drain of a backlog of 1,000,000 keys, against 10,000", 1_000_000, 1, partitions},
	{"drain of a backlog of 1,000 topics, against one", keys, 1000, 1},
	{"drain of a backlog for 1,000 partitions, against 8", keys, 1, 1000},
}

// cliff is what a drain may lose by a backlog that is spread wide: the batches of a partition are small then.
const cliff = 0.5

var scaleFigures = func() (names []string) {
	for _, relays := range fleets {
		names = append(names, fleetFigure(relays))
	}
	for _, s := range spreads {
		names = append(names, s.figure)
	}
	return names
}()

// measureScale drains the same backlog by more relays, and by one relay backlogs with more keys, topics and partitions. Each
// takes its turn in each round.
func measureScale(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	usualBacklog, err := e.scaleBacklog(ctx, r, usual(topic))
	if err != nil {
		return err
	}
	runs := []*scaleRun{{relays: 1, backlog: usualBacklog}}
	for _, relays := range fleets {
		if selected(e.options.only, []string{fleetFigure(relays)}) {
			runs = append(runs, &scaleRun{figure: fleetFigure(relays), goal: atLeast(1), relays: relays, backlog: usualBacklog})
		}
	}
	for _, s := range spreads {
		if !selected(e.options.only, []string{s.figure}) {
			continue
		}
		of := usual(topic)
		of.keys = s.keys
		if s.topics > 1 || s.partitions != partitions {
			of.topics = nil
			for range s.topics {
				e.count++
				name := fmt.Sprintf("holdfast-bench-scale-%d", e.count)
				if err := e.kafka.CreateTopic(ctx, name, s.partitions, nil); err != nil {
					return err
				}
				of.topics = append(of.topics, name)
				defer func() { _ = e.kafka.DeleteTopic(context.WithoutCancel(ctx), name) }() // one more topic on a server that goes away
			}
		}
		backlog, err := e.scaleBacklog(ctx, r, of)
		if err != nil {
			return err
		}
		runs = append(runs, &scaleRun{figure: s.figure, goal: atLeast(cliff), relays: 1, backlog: backlog})
	}
	for round := range e.rounds {
		for i := range runs {
			run := runs[(i+round)%len(runs)]
			speed, err := e.fleetDrain(ctx, run.backlog, run.relays, e.scale)
			if err != nil {
				return fmt.Errorf("%s: %w", run.figure, err)
			}
			run.speed = append(run.speed, speed)
			r.progress("scale %d/%d: %s events/s, %s", round+1, e.rounds, number(speed), run.figure)
		}
	}
	r.info(fmt.Sprintf("drain by one relay on %d lanes", scaleLanes), median(runs[0].speed), "events/s")
	for _, run := range runs[1:] {
		r.goal(run.figure, median(ratios(run.speed, runs[0].speed)), "x", run.goal)
	}
	return nil
}

// scaleRun is one contestant.
type scaleRun struct {
	figure  string
	goal    goal
	relays  int
	backlog string // a database to copy
	speed   []float64
}

// scaleBacklog makes a database of many lanes with a backlog.
func (e *env) scaleBacklog(ctx context.Context, r *report, s shape) (string, error) {
	r.progress("scale: writing a backlog of %d events, %d keys, %d topics", e.scale, s.keys, len(s.topics))
	database, err := e.migratedWith(ctx, holdfast.SchemaConfig{Lanes: scaleLanes})
	if err != nil {
		return "", err
	}
	if err := e.writeShaped(ctx, database, s, e.scale); err != nil {
		return "", err
	}
	return database, e.analyze(ctx, database)
}

// fleetDrain publishes a copy of a backlog with several relays.
func (e *env) fleetDrain(ctx context.Context, backlog string, relays, events int) (float64, error) {
	database, err := e.database(ctx, backlog)
	if err != nil {
		return 0, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	return e.relaysDrain(ctx, database, relays, 8, events)
}
