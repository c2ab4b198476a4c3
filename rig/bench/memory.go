package main

import (
	"context"
	"fmt"
	"time"
)

const (
	memoryPeak   = "resident memory of a draining relay, peak"
	memoryGrowth = "resident memory, last quarter against second"
	deadTuples   = "dead tuples left in the event tables"
)

var memoryFigures = []string{memoryPeak, memoryGrowth, deadTuples, consumerMemory("300 B")}

// measureMemory lets a relay in a process of its own drain a large backlog, and samples its resident set. Then it asks
// Postgres for the dead rows that the drain has left in the log.
func measureMemory(ctx context.Context, e *env, r *report) error {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("memory: writing a backlog of %d events", e.memory)
	if err := e.writeBacklog(ctx, database, topic, e.memory); err != nil {
		return err
	}
	if err := e.analyze(ctx, database); err != nil {
		return err
	}
	r.progress("memory: draining it")
	var samples []memorySample
	var peak float64
	if err := e.exactly(ctx, r, topic, e.memory, "relay", func() (err error) {
		samples, peak, err = e.sampleMemory(ctx, childOptions{database: database}, e.memory)
		return err
	}); err != nil {
		return err
	}
	growth := growthOf(samples, int64(e.memory))
	r.goal(memoryPeak, peak, "MiB", below(100))
	r.goal(memoryGrowth, growth, "x", atMost(1.1))
	r.note("Resident set while %d events are drained: %s", e.memory, sketch(samples))

	dead, err := e.deadTuples(ctx, database)
	if err != nil {
		return err
	}
	r.goal(deadTuples, float64(dead), fmt.Sprintf("of %s events", number(float64(e.memory))), atMost(0))
	return e.consumerMemory(ctx, r, consumerMemory("300 B"), topic, 100, e.memory/5, below(100))
}

// memorySample is the resident set in MiB after so many published or handled events.
type memorySample struct {
	published int64
	resident  float64
}

// sampleMemory runs a child until it has published or handled so many events. peak is that of its resident set.
func (e *env) sampleMemory(ctx context.Context, o childOptions, events int) (samples []memorySample, peak float64, err error) {
	c, err := e.startChild(o)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if stopErr := c.stop(); err == nil {
			err = stopErr
		}
	}()
	lastMove := time.Now()
	for {
		u, err := c.ask()
		if err != nil {
			return nil, 0, err
		}
		resident, highest, err := c.resident()
		if err != nil {
			return nil, 0, err
		}
		peak = max(peak, highest)
		if len(samples) == 0 || u.published != samples[len(samples)-1].published {
			lastMove = time.Now()
		}
		samples = append(samples, memorySample{u.published, resident})
		if u.published >= int64(events) {
			return samples, peak, nil
		}
		if time.Since(lastMove) > stalled {
			return nil, 0, fmt.Errorf("it has come to %d of %d events and goes no further", u.published, events)
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// growthOf returns how much larger the resident set is in the last quarter of the events than in the second.
// It compares medians, since every garbage collection moves it up and down. The first quarter fills pools and caches, and
// is left out.
func growthOf(samples []memorySample, events int64) (growth float64) {
	var second, last []float64
	for _, s := range samples {
		switch 4 * s.published / (events + 1) {
		case 1:
			second = append(second, s.resident)
		case 3:
			last = append(last, s.resident)
		}
	}
	if len(second) == 0 || len(last) == 0 {
		return 1 // too quick to have been sampled
	}
	return median(last) / median(second)
}

// sketch is the resident set at about ten moments.
func sketch(samples []memorySample) string {
	text := ""
	for i := range min(10, len(samples)) {
		text += fmt.Sprintf("%.0f ", samples[i*(len(samples)-1)/max(1, min(10, len(samples))-1)].resident)
	}
	return text + "MiB"
}

// deadTuples counts the row versions that updates and deletes of events have left, or had left before some vacuum.
func (e *env) deadTuples(ctx context.Context, database string) (dead int64, err error) {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	// The relay's sessions are gone and have reported; pg_stat_force_next_flush is for this one.
	if _, err := pool.Exec(ctx, "select pg_stat_force_next_flush()"); err != nil {
		return 0, fmt.Errorf("flush the statistics: %w", err)
	}
	err = pool.QueryRow(ctx, `select coalesce(sum(greatest(n_dead_tup, n_tup_upd + n_tup_del)), -1)
  from pg_stat_user_tables where schemaname = 'holdfast' and relname ~ '^event(_[0-3])?$'`).Scan(&dead)
	if err != nil {
		return 0, fmt.Errorf("read the statistics: %w", err)
	}
	if dead < 0 {
		return 0, fmt.Errorf("read the statistics: the event tables are not in pg_stat_user_tables")
	}
	return dead, nil
}
