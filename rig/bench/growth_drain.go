package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
)

// backlogOf is a backlog that is drained for a point. Zero fields are as in the usual backlog.
type backlogOf struct {
	events, keys, lanes, payload int
	memory                       bool // a relay in a process of its own drains it once more
}

// drainPoint is what came out: the best of the rounds, because other work on the machine can only make one worse.
type drainPoint struct {
	rate           float64 // events a second
	self, postgres float64 // CPU time of the relay's process and of Postgres, microseconds an event; 0 if it is not known
	peak           float64 // of the relay's resident set, MiB
}

// drained writes a backlog and lets a relay drain copies of it.
func (e *env) drained(ctx context.Context, r *report, of backlogOf, rounds int) (p drainPoint, err error) {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return p, err
	}
	defer drop()
	database, err := e.migratedWith(ctx, holdfast.SchemaConfig{Lanes: of.lanes})
	if err != nil {
		return p, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	s := usual(topic)
	if of.keys > 0 {
		s.keys = of.keys
	}
	if of.payload > 0 {
		s.payload = of.payload
	}
	r.progress("writing a backlog of %d events", of.events)
	// Few large transactions, because writing is not what is measured, and takes longest.
	most := max(1, min(100, 1_000_000/s.payload))
	if err := e.write(ctx, database, s, pgx.ReadCommitted, 1, of.events, func(*rand.Rand) int { return most }); err != nil {
		return p, err
	}
	if err := e.analyze(ctx, database); err != nil {
		return p, err
	}
	var runs samples
	for round := range rounds {
		if err := e.drainCopy(ctx, r, database, topic, usualRelay, of.events, &runs, round); err != nil {
			return p, err
		}
	}
	p.rate, p.self, p.postgres = slices.Max(runs.speed), slices.Min(runs.self), slices.Min(runs.postgres)
	if of.memory {
		err = e.exactly(ctx, r, topic, of.events, "relay", func() (err error) {
			_, p.peak, err = e.sampleMemory(ctx, childOptions{database: database}, of.events)
			return err
		})
	}
	r.progress("drained %d events: %s events/s, %s MiB", of.events, number(p.rate), number(p.peak))
	return p, err
}

// drainCurves are the curves of drains against one number.
type drainCurves struct{ rate, cpu, memory curve }

func newDrainCurves(names [3]string, against string, x axis, caption string) *drainCurves {
	captions := []string{caption}
	return &drainCurves{
		rate: curve{
			Name:    names[0],
			Title:   "Drain rate against " + against,
			X:       x,
			Y:       axis{"drain rate", "events/s"},
			Series:  make([]series, 1),
			Caption: captions,
		},
		cpu: curve{
			Name:    names[1],
			Title:   "CPU time of a drain against " + against,
			X:       x,
			Y:       axis{"CPU time", "µs an event"},
			Series:  []series{{Name: "Postgres"}, {Name: "the relay's process"}},
			Caption: captions,
		},
		memory: curve{
			Name:    names[2],
			Title:   "Memory of a draining relay against " + against,
			X:       x,
			Y:       axis{"peak of the resident set", "MiB"},
			Series:  make([]series, 1),
			Caption: captions,
		},
	}
}

func (c *drainCurves) add(x float64, p drainPoint) {
	c.rate.Series[0].add(x, p.rate)
	c.cpu.Series[0].add(x, p.postgres)
	c.cpu.Series[1].add(x, p.self)
	c.memory.Series[0].add(x, p.peak)
}

// all are the curves that were measured: CPU time is not known of a server that we have not started.
func (c *drainCurves) all() (curves []curve) {
	for _, one := range []curve{c.rate, c.cpu, c.memory} {
		if points := one.Series[0].Points; len(points) > 0 && points[0].Y > 0 {
			curves = append(curves, one)
		}
	}
	return curves
}

// bestOf says how often a drain is repeated.
func (e *env) bestOf() string { return fmt.Sprintf("The best of %d drains.", e.growth.rounds) }

// growByBacklog drains longer and longer backlogs.
func growByBacklog(ctx context.Context, e *env, r *report) ([]curve, error) {
	curves := newDrainCurves([3]string{drainByBacklog, cpuByBacklog, memoryByBacklog}, "backlog", axis{"backlog", "events"},
		fmt.Sprintf("One relay, 8 lanes, 8 partitions, %s keys, payloads of %d bytes, 100 events a transaction. %s", number(keys), payloadBytes, e.bestOf()))
	for _, n := range e.growth.backlogs {
		rounds := e.growth.rounds
		if n >= large {
			rounds = 1
		}
		p, err := e.drained(ctx, r, backlogOf{events: n, memory: true}, rounds)
		if err != nil {
			return nil, fmt.Errorf("%d events: %w", n, err)
		}
		curves.add(float64(n), p)
	}
	curves.rate.extend(fixedAndEach, e.growth.past...)
	curves.cpu.extend(sameStep, e.growth.past...)
	curves.memory.extend(sameStep, e.growth.past...)
	return curves.all(), nil
}

// growByPayload drains backlogs of larger and larger events.
func growByPayload(ctx context.Context, e *env, r *report) ([]curve, error) {
	curves := newDrainCurves([3]string{drainByPayload, cpuByPayload, memoryByPayload}, "payload", axis{"payload of an event", "bytes"},
		fmt.Sprintf("One relay, 8 lanes, 8 partitions; backlogs of %s MB, of %s events at most. %s", number(float64(e.growth.payloadSum)/1e6), number(float64(e.growth.spread)), e.bestOf()))
	for _, size := range e.growth.payloads {
		p, err := e.drained(ctx, r, backlogOf{
			events:  min(e.growth.payloadSum/size, e.growth.spread),
			payload: size,
			memory:  true,
		}, e.growth.rounds)
		if err != nil {
			return nil, fmt.Errorf("events of %d bytes: %w", size, err)
		}
		curves.add(float64(size), p)
	}
	return curves.all(), nil
}

// growByKeys drains backlogs whose events have more and more keys.
func growByKeys(ctx context.Context, e *env, r *report) ([]curve, error) {
	curves := newDrainCurves([3]string{drainByKeys, cpuByKeys}, "keys", axis{"keys that the events are drawn from", "number"},
		fmt.Sprintf("One relay, 8 lanes, 8 partitions; backlogs of %s events of %d bytes. %s", number(float64(e.growth.spread)), payloadBytes, e.bestOf()))
	for _, n := range e.growth.keys {
		p, err := e.drained(ctx, r, backlogOf{events: e.growth.spread, keys: n}, e.growth.rounds)
		if err != nil {
			return nil, fmt.Errorf("%d keys: %w", n, err)
		}
		curves.add(float64(n), p)
	}
	return curves.all(), nil
}

// growByLanes drains the same backlog in more and more lanes.
func growByLanes(ctx context.Context, e *env, r *report) ([]curve, error) {
	curves := newDrainCurves([3]string{drainByLanes, cpuByLanes}, "lanes", axis{"lanes of the schema", "number"},
		fmt.Sprintf("One relay, 8 partitions; backlogs of %s events of %d bytes, %s keys. %s", number(float64(e.growth.spread)), payloadBytes, number(keys), e.bestOf()))
	for _, n := range e.growth.lanes {
		p, err := e.drained(ctx, r, backlogOf{events: e.growth.spread, lanes: n}, e.growth.rounds)
		if err != nil {
			return nil, fmt.Errorf("%d lanes: %w", n, err)
		}
		curves.add(float64(n), p)
	}
	return curves.all(), nil
}
