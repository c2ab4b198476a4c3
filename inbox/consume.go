package inbox

import (
	"context"
	"sync"
	"time"
)

// This file joins the consumer group and runs the partitions that the group assigns.

// consumer takes events in from the partitions of a group.
type consumer struct {
	*env
	declarations *declarations
	receiver     *receiver
	fences       *fences
	memory       *memory
	pauses       *pauses

	suspects sync.Mutex // after two unclean ends one suspect of the node runs at a time (serial.go)
}

// run joins the group again and again, and runs each generation, until ctx ends.
func (co *consumer) run(ctx context.Context, src Session) error {
	workers := newWorkerPool(co.receiver)
	workers.start()
	defer workers.end()
	defer src.Close()
	// Declare before the first event is taken in. Otherwise other nodes skip a type that this node is the first to handle.
	for wait := 0; ; wait++ {
		err := co.declarations.declare(ctx)
		if err == nil {
			if err = co.renewIncarnation(ctx); err == nil {
				err = co.pauses.look(ctx, co.pool)
			}
			if err == nil {
				break
			}
			if fix := co.miswired(ctx, err); fix != nil {
				return fix
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if co.miswired(ctx, err) != nil {
			return nil // Run declares the types too. It returns this error and ends both.
		}
		co.transient(err)
		if pause(ctx, spread(databaseBase, databaseCap, wait+1, co.random())) != nil {
			return nil
		}
	}
	for wait := 0; ; {
		gen, err := src.Next(ctx)
		if ctx.Err() != nil {
			if gen != nil {
				gen.Leave()
			}
			return nil
		}
		if fatal(err) {
			return err
		}
		if err != nil {
			co.kafkaTransient("joining the group", err)
			wait++
			if pause(ctx, spread(databaseBase, databaseCap, wait, co.random())) != nil {
				return nil
			}
			continue
		}
		wait = 0
		co.sayMissing(gen)
		err = co.generation(ctx, gen, workers)
		gen.Leave()
		switch {
		case fatal(err):
			return err
		case err != nil:
			// The partition was fenced off before the group said so, or the database went back in time: join again.
			// Wait a little: two groups that share a consumer by mistake would otherwise do nothing but join.
			if pause(ctx, spread(time.Second, time.Second, 1, co.random())) != nil {
				return nil
			}
		}
	}
}

// generation runs the assigned partitions until the group wants them back, and then releases them. A pause of the consumer ends it
// too. While that lasts this node stays in the group, and reads nothing.
func (co *consumer) generation(ctx context.Context, gen Generation, workers *workerPool) error {
	running, change := co.pauses.running()
	if !running {
		co.vitals.joined(true)
		defer co.vitals.joined(false)
		select {
		case <-gen.Over():
		case <-change:
		case <-ctx.Done():
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-change:
			cancel()
		case <-gen.Over():
			cancel()
		case <-ctx.Done():
		}
	}()
	g := newGroup(ctx)
	h := &held{of: map[TopicPartition]*heldPartition{}}
	co.vitals.joined(true)
	defer co.vitals.joined(false)
	co.hold(g, h, gen, gen.Assigned(), workers)
	// Stay in the group without partitions too: leaving would take the generation from the others.
	g.run(func(ctx context.Context) error { <-ctx.Done(); return nil })
	if changing, ok := gen.(Incremental); ok {
		g.run(func(ctx context.Context) error { co.follow(ctx, g, h, changing, workers); return nil })
	}

	saver := make(chan struct{})
	stopSaving, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(saver)
		co.saveLoop(stopSaving, gen, h)
	}()
	err := g.wait()
	stop()
	<-saver
	co.release(gen, co.takeAll(h))
	return err
}
