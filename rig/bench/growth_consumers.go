package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
)

// growByConsumers lets more and more consumers of one database handle a topic: members of one group, which share its partitions,
// and groups of their own, which each handle all events.
func growByConsumers(ctx context.Context, e *env, r *report) ([]curve, error) {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return nil, err
	}
	defer drop()
	written, err := e.migrated(ctx)
	if err != nil {
		return nil, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), written)
	r.progress("consumers: publishing %d events", e.growth.consume)
	if err := e.writeBacklog(ctx, written, topic, e.growth.consume); err != nil {
		return nil, err
	}
	if err := e.exactly(ctx, r, topic, e.growth.consume, "relay", func() error {
		_, err := e.relayDrain(ctx, written, e.growth.consume)
		return err
	}); err != nil {
		return nil, err
	}
	x := axis{"consumers of the database", "number"}
	caption := []string{fmt.Sprintf("Handlers that share transactions (WithGroup) and do nothing, %s events of %d bytes in 8 partitions; all in one process. The best of %d runs.",
		number(float64(e.growth.consume)), payloadBytes, e.growth.rounds)}
	rate := curve{
		Name:    rateByConsumers,
		Title:   "Rate of consumers of one database",
		X:       x,
		Y:       axis{"handled by all together", "events/s"},
		Caption: caption,
	}
	cpu := curve{
		Name:    cpuByConsumers,
		Title:   "CPU time of Postgres against consumers of one database",
		X:       x,
		Y:       axis{"CPU time of Postgres", "µs an event"},
		Caption: caption,
	}
	for i, own := range []bool{false, true} {
		name := []string{"members of one group", "each in a group of its own"}[i]
		rate.Series, cpu.Series = append(rate.Series, series{Name: name}), append(cpu.Series, series{Name: name})
		for _, n := range e.growth.consumers {
			var runs samples
			for range e.growth.rounds {
				if err := e.consumeTogether(ctx, topic, n, own, newStopwatch(e, e.growth.consume, &runs)); err != nil {
					return nil, fmt.Errorf("%d consumers, %s: %w", n, name, err)
				}
			}
			rate.Series[i].add(float64(n), slices.Max(runs.speed))
			cpu.Series[i].add(float64(n), slices.Min(runs.postgres))
			r.progress("%d consumers, %s: %s events/s", n, name, number(slices.Max(runs.speed)))
		}
	}
	if e.master == 0 { // CPU time is not known of a server that we have not started.
		return []curve{rate}, nil
	}
	return []curve{rate, cpu}, nil
}

// consumeTogether lets n consumers handle events until they have handled enough. None begins before all have their partitions.
func (e *env) consumeTogether(ctx context.Context, topic string, n int, own bool, watch *stopwatch) error {
	database, err := e.migrated(ctx)
	if err != nil {
		return err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	share := e.partitions / n
	if own {
		share = e.partitions
	}
	start := newStartLine(n, share)
	ended, ends := make(chan error, n), make([]error, n)
	var group sync.WaitGroup
	var pool *pgxpool.Pool
	for member := range n {
		if pool, err = e.pool(ctx, database, consumerWorkers+2); err != nil {
			return err
		}
		defer pool.Close()
		name, groupID := "bench", database
		if own {
			name, groupID = fmt.Sprint("bench", member), fmt.Sprint(database, "-", member)
		}
		in, err := inbox.New(pool, inbox.Config{
			Consumer: name,
			Logger:   warnings(),
			Observer: inbox.Observer{OnReceive: watch.received},
		})
		if err != nil {
			return err
		}
		in.Handle(eventType, doNothing, inbox.WithGroup(consumerGroup))
		source, err := kafkago.NewGroup(kafkago.Connection{Brokers: e.kafka.Brokers}, kafkago.GroupConfig{GroupID: groupID, Topics: []string{topic}})
		if err != nil {
			return err
		}
		group.Go(func() {
			ends[member] = in.Consume(consuming, start.of(source, member))
			ended <- ends[member]
		})
	}
	err = watch.wait(ctx, ended)
	stop()
	group.Wait()
	if err := errors.Join(append(ends, err)...); err != nil {
		return err
	}
	return watch.check(ctx, pool)
}
