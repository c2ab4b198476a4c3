package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// consumeOptions is what of a KafkaGroup is not the source's business.
type consumeOptions struct {
	adopt       bool
	skipDeleted bool
}

// Consume takes in the events of a consumer group's topics, and runs what Run runs. A partition's events are handled in
// parallel as far as their keys differ; those of one key one after the other. A new group starts at the first offset;
// otherwise reading starts at the lower of the consumer's position in Postgres and the group's committed offset. Where the
// group has none it starts at the position, if the log still holds the event that was settled last below it, and else at
// the first offset: Kafka forgets offsets after a while, and with a topic that is deleted. What is read below the position
// is a duplicate, or Stale where no row knows it any more; Observer.OnReread tells how much that may be. To read again on
// purpose, set the group's offsets back. After a crash or a failover of Postgres the group is joined anew, and reading
// starts again so: what was lost with the database's last transactions is handled again.
//
// It returns nil when ctx is done: handlers in hand may finish for Config.StopTimeout and are cancelled then, offsets are
// committed, and the group is left. Brokers and databases that cannot be reached are waited for. It returns an error
// that wraps ErrOffsetOutOfRange when a log does not hold what is to be read next, so that nothing is skipped in silence,
// ErrHungHandlers when too many handlers hang, ErrConfiguration when the brokers refuse a setting, and
// holdfast.ErrSchemaMissing where there is no schema.
func (in *Inbox) Consume(ctx context.Context, g KafkaGroup) error {
	in.registry.start()
	g = g.withDefaults(in.c)
	if err := g.validate(in.c); err != nil {
		return fmt.Errorf("kafka group: %w", err)
	}
	src, err := openKafka(ctx, g)
	if err != nil {
		return fmt.Errorf("kafka group: %w", err)
	}
	return in.consume(ctx, src, consumeOptions{adopt: g.AdoptCommitted, skipDeleted: g.SkipDeleted})
}

// consumer takes events of Kafka's partitions in.
type consumer struct {
	*env
	registry     *registry
	runner       *runner
	ledger       *ledger
	declarations *declarations
	receiver     *receiver

	careful sync.Mutex // after an unclean end one handler runs at a time, so that a crash has one suspect
}

func (in *Inbox) consume(ctx context.Context, src source, o consumeOptions) error {
	g := newGroup(ctx)
	in.runStored(g)
	g.run(func(ctx context.Context) error { return in.consumer.run(ctx, src, o) })
	return g.wait()
}

// run joins the group, again and again, and works what it is given until ctx ends.
func (co *consumer) run(ctx context.Context, src source, o consumeOptions) error {
	workers := newCrew(co.receiver)
	workers.start()
	defer workers.end()
	defer src.close()
	// Before the first event is taken in: a type that this node is the first to know must not be skipped elsewhere.
	for wait := 0; ; wait++ {
		err := co.declarations.declare(ctx)
		if err == nil {
			if err = co.renew(ctx); err == nil {
				break
			}
			if mend := miswired(err); mend != nil {
				return mend
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if miswired(err) != nil {
			return nil // Run's part, which declares the types too, says so and ends it all.
		}
		co.troubled(err)
		if pause(ctx, spread(databaseBase, databaseCap, wait+1, co.random())) != nil {
			return nil
		}
	}
	for wait := 0; ; {
		gen, err := src.next(ctx)
		if ctx.Err() != nil {
			if gen != nil {
				gen.leave()
			}
			return nil
		}
		if fatal(err) {
			return err
		}
		if err != nil {
			co.kafkaTroubled("joining the group", err)
			wait++
			if pause(ctx, spread(databaseBase, databaseCap, wait, co.random())) != nil {
				return nil
			}
			continue
		}
		wait = 0
		err = co.generation(ctx, gen, workers, o)
		gen.leave()
		switch {
		case fatal(err):
			return err
		case err != nil:
			// Fenced, though the group has not told us, or the database went back: join again, and be given what is ours.
			// Not at once, lest two groups that share a consumer by mistake do nothing else.
			if pause(ctx, spread(time.Second, time.Second, 1, co.random())) != nil {
				return nil
			}
		}
	}
}

// generation works the partitions we were given until they are to be given up, and lets go of them in order.
func (co *consumer) generation(ctx context.Context, gen generation, workers *crew, o consumeOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-gen.over():
			cancel()
		case <-ctx.Done():
		}
	}()
	jobs, forget := linger(ctx, co.c.StopTimeout)
	defer forget()

	var parts []*partition
	g := newGroup(ctx)
	for tp, committed := range gen.assigned() {
		p := newPartition(co, workers, gen, tp, committed, o)
		parts = append(parts, p)
		g.run(func(ctx context.Context) error { return p.run(ctx, jobs) })
	}
	// Nothing to do is no reason to give the generation up: others may have what there is.
	g.run(func(ctx context.Context) error { <-ctx.Done(); return nil })

	saver := make(chan struct{})
	stopSaving, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(saver)
		co.saveLoop(stopSaving, gen, parts)
	}()
	err := g.wait()
	stop()
	<-saver
	co.release(gen, parts)
	return err
}

// fatal says which errors end Consume rather than be waited out.
func fatal(err error) bool {
	return errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrHungHandlers) || errors.Is(err, ErrConfiguration)
}
