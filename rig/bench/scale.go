package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
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
	runs := []*scaleRun{{relays: 1, backlog: usualBacklog}, {bare: true, partitions: partitions, backlog: usualBacklog}}
	for _, relays := range fleets {
		if selected(e.options.only, []string{fleetFigure(relays)}) {
			runs = append(runs, &scaleRun{
				figure:  fleetFigure(relays),
				goal:    atLeast(1),
				relays:  relays,
				backlog: usualBacklog,
			})
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
			if err := e.warm(ctx, of.topics, s.partitions); err != nil {
				return err
			}
		}
		backlog, err := e.scaleBacklog(ctx, r, of)
		if err != nil {
			return err
		}
		if s.topics > 1 || s.partitions != partitions {
			// A record a partition is not enough: the first backlog takes a broker ten times as long as the next.
			first := scaleRun{bare: true, partitions: s.partitions, backlog: backlog}
			if err := e.scaleDrain(ctx, &first); err != nil {
				return fmt.Errorf("warm up for %s: %w", s.figure, err)
			}
		}
		runs = append(runs, &scaleRun{
			figure:  s.figure,
			goal:    atLeast(cliff),
			relays:  1,
			backlog: backlog,
		},
			&scaleRun{figure: s.figure, bare: true, partitions: s.partitions, backlog: backlog})
	}
	for round := range e.rounds {
		for i := range runs {
			run := runs[(i+round)%len(runs)]
			if err := e.scaleDrain(ctx, run); err != nil {
				return fmt.Errorf("%s: %w", run.figure, err)
			}
			r.progress("scale %d/%d: %s events/s, %s", round+1, e.rounds, number(run.speed[round]), run.name())
		}
	}
	for i, run := range runs {
		r.info(run.name(), median(run.speed), "events/s")
		if median(run.postgres) > 0 {
			r.info(run.name()+": CPU time of its process", median(run.self), "µs an event")
			r.info(run.name()+": CPU time of Postgres", median(run.postgres), "µs an event")
		}
		switch {
		case run.bare: // the one before it published the same
			r.ratio(run.name()+": the relay against it", runs[i-1].speed, run.speed, "events/s", noGoal)
		case i > 0:
			r.ratio(run.figure, run.speed, runs[0].speed, "events/s", run.goal)
		}
	}
	return nil
}

// scaleRun is one contestant: relays, or the bare loop.
type scaleRun struct {
	figure     string // that it is measured for; "" for the usual backlog
	goal       goal
	relays     int
	bare       bool
	partitions int    // of each topic, for the bare loop
	backlog    string // a database to copy
	samples
}

func (r *scaleRun) name() string {
	who, what := fmt.Sprintf("one relay on %d lanes", scaleLanes), "drain"
	if r.bare {
		who = "the bare loop"
	} else if r.relays > 1 {
		who = fmt.Sprintf("%d relays on %d lanes", r.relays, scaleLanes)
	}
	if r.relays <= 1 && r.figure != "" {
		what, _, _ = strings.Cut(r.figure, ", against")
	}
	return what + " by " + who
}

// scaleDrain makes one run.
func (e *env) scaleDrain(ctx context.Context, run *scaleRun) error {
	database, err := e.database(ctx, run.backlog)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	return run.take(e, e.scale, func() (float64, error) {
		if run.bare {
			return e.bareDrainOf(ctx, database, scaleLanes, run.partitions, e.scale)
		}
		return e.relaysDrain(ctx, database, run.relays, 8, e.scale)
	})
}

// warm publishes to each partition of some topics, until all have a leader: a broker makes the files of a partition with its first
// record.
func (e *env) warm(ctx context.Context, topics []string, partitions int) error {
	byKey := func(e holdfast.Event, _ int) int { n, _ := strconv.Atoi(e.Key); return n }
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: e.kafka.Brokers}, kafkago.PublisherConfig{PartitionFunc: byKey})
	if err != nil {
		return err
	}
	defer publisher.Close()
	var left []holdfast.Event
	for _, topic := range topics {
		for p := range partitions {
			left = append(left, holdfast.Event{
				ID:    "warm",
				Type:  eventType,
				Topic: topic,
				Key:   strconv.Itoa(p),
			})
		}
	}
	for until := time.Now().Add(5 * time.Minute); len(left) > 0; {
		var again []holdfast.Event
		var failed error
		for i, err := range publisher.Publish(ctx, left) {
			if err != nil {
				again, failed = append(again, left[i]), err
			}
		}
		if left = again; failed != nil && (time.Now().After(until) || ctx.Err() != nil) {
			return fmt.Errorf("warm the topics: %w", failed)
		}
		if failed != nil {
			time.Sleep(time.Second) // sleep: the broker makes the partitions meanwhile
		}
	}
	return nil
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
