package inbox

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/internal/turns"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file joins the consumer group and runs the partitions that the group assigns.

// consumer takes events in from the partitions of a group.
type consumer struct {
	*env
	declarations *declarations
	receiver     *receiver
	positions    *position.Table
	memory       *readahead.Memory
	pauses       *pauses

	suspects *turns.Turns // one suspect of the node runs at a time, also of the stored ones (claim.go): here after two unclean ends (serial.go)
}

// run joins the group again and again, and runs each generation, until ctx ends.
func (co *consumer) run(ctx context.Context, src source.Session) error {
	workers := newWorkerPool(co.receiver)
	workers.start()
	defer workers.end()
	defer src.Close()
	// Declare before the first event is taken in. Otherwise other nodes skip a type that this node is the first to handle.
	for wait := 0; ; wait++ {
		err := co.declarations.declare(ctx)
		if err == nil {
			if err = co.renew(ctx); err == nil {
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
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, co.random())) != nil {
			return nil
		}
	}
	for wait := 0; ; {
		gen, err := src.Next(ctx)
		err = foreign.Error(err)
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
			co.brokerTransient("joining the group", err)
			wait++
			if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, co.random())) != nil {
				return nil
			}
			continue
		}
		wait = 0
		co.sayMissing(gen)
		err = co.generation(ctx, gen, workers, newOwned(readahead.BoundOf(src)))
		gen.Leave()
		switch {
		case fatal(err):
			return err
		case err != nil:
			// The partition was fenced off before the group said so, or the database went back in time: join again.
			// Wait a little: two groups that share a consumer by mistake would otherwise do nothing but join.
			if loop.Sleep(ctx, loop.Spread(time.Second, time.Second, 1, co.random())) != nil {
				return nil
			}
		}
	}
}

// generation runs the assigned partitions until the group wants them back, and then releases them. A pause of the consumer ends it
// too. While that lasts this node stays in the group, and reads nothing. o has nothing yet.
func (co *consumer) generation(ctx context.Context, gen source.Generation, workers *workerPool, o *owned) error {
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
	g := loop.NewGroup(ctx)
	co.vitals.joined(true)
	defer co.vitals.joined(false)
	co.own(g, o, gen, gen.Assigned(), workers)
	// Stay in the group without partitions too: leaving would take the generation from the others.
	g.Run(func(ctx context.Context) error { <-ctx.Done(); return nil })
	if changing, ok := gen.(source.Incremental); ok {
		g.Run(func(ctx context.Context) error { co.follow(ctx, g, o, changing, workers); return nil })
	}

	saver := make(chan struct{})
	stopSaving, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(saver)
		co.saveLoop(stopSaving, gen, o)
	}()
	err := g.Wait()
	stop()
	<-saver
	co.release(gen, co.takeAll(o))
	return err
}

// own starts to read partitions.
func (co *consumer) own(g *loop.Group, o *owned, gen source.Generation, given map[source.TopicPartition]source.Start, workers *workerPool) {
	co.memory.Partitions.Add(int64(len(given)))
	for tp, start := range given {
		p := &ownedPartition{partition: co.newPartition(workers, gen, tp, start), ended: make(chan struct{})}
		p.until = o.until
		ctx, stop := context.WithCancel(g.Context())
		p.stop = stop
		o.mu.Lock()
		o.of[tp] = p
		o.mu.Unlock()
		jobs, forget := loop.WithGrace(ctx, co.c.StopTimeout)
		g.Run(func(context.Context) error {
			defer close(p.ended)
			defer forget()
			defer stop()
			return p.run(ctx, jobs)
		})
	}
}

func (co *consumer) newPartition(workers *workerPool, gen source.Generation, tp source.TopicPartition, start source.Start) *partition {
	return &partition{
		env:          co.env,
		positions:    co.positions,
		declarations: co.declarations,
		receiver:     co.receiver,
		serial:       co.suspects,
		memory:       co.memory,
		workers:      workers,
		gen:          gen,
		tp:           tp,
		start:        start,
		scheduler:    newScheduler(co.c.BatchSize),
		freed:        make(chan struct{}, 1),
		counted:      map[int64]*delivery{},
	}
}

// take takes partitions out of those that a node has. They are to be released.
func (co *consumer) take(o *owned, of []source.TopicPartition) (parts []*partition) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tp := range of {
		if p := o.of[tp]; p != nil {
			parts = append(parts, p.partition)
			delete(o.of, tp)
		}
	}
	co.memory.Partitions.Add(-int64(len(parts)))
	return parts
}

func (co *consumer) takeAll(o *owned) []*partition {
	var of []source.TopicPartition
	for _, p := range o.all() {
		of = append(of, p.tp)
	}
	return co.take(o, of)
}

// follow starts and stops partitions as the group gives and takes them, until ctx ends.
func (co *consumer) follow(ctx context.Context, g *loop.Group, o *owned, gen source.Incremental, workers *workerPool) {
	for {
		select {
		case c := <-gen.Changes():
			if len(c.Revoked) > 0 {
				g.Run(func(ctx context.Context) error { co.giveBack(o, gen, c.Revoked); return nil })
			}
			co.own(g, o, gen, c.Added, workers)
		case <-ctx.Done():
			return
		}
	}
}

// giveBack lets the handlers of some partitions finish, as at the end of a generation, and releases them.
func (co *consumer) giveBack(o *owned, gen source.Incremental, of []source.TopicPartition) {
	for _, tp := range of {
		if p := o.get(tp); p != nil {
			p.stop()
		}
	}
	for _, tp := range of {
		if p := o.get(tp); p != nil {
			<-p.ended
		}
	}
	o.saving.Lock()
	defer o.saving.Unlock()
	co.release(gen, co.take(o, of))
	gen.Release(of)
}
