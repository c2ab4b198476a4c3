package inbox

import (
	"context"
	"errors"
	"sync"
	"time"
)

// This file is the loop over what is stored.

const (
	// declareEvery is how often a node says which types it handles; declareFor is how long it counts as running by that.
	declareEvery = 20 * time.Second
	declareFor   = 2 * time.Minute

	// believeFor is how long after that its types are left for it all the same. It may be alive, and only unable to say so:
	// cut off from Postgres, or with a pool that slow handlers hold. What is stored in vain can be found (Waiting.Undeclared)
	// and handled; what is skipped is gone.
	believeFor = time.Hour

	// patrolTimeout bounds every statement of the loops, so that one whose answer is lost cannot end them silently.
	patrolTimeout = 30 * time.Second
)

// Run works the stored events of the consumer: retries that are due, events behind them, those of Store, and replays of
// dead letters. Any number of nodes may run it at once; the events of one key are handled one after the other, in their
// order. It returns nil when ctx is done: handlers in hand may finish for Config.StopTimeout, are cancelled then, and their
// events go back unspent. The error wraps ErrHungHandlers when it had to stop by itself, and holdfast.ErrSchemaMissing
// where there is no schema. A database that cannot be reached is waited for. Consume runs it too.
//
// It also removes the rows of `inbox` that are no longer needed (Config.Retention), a few at a time.
func (in *Inbox) Run(ctx context.Context) error {
	in.registry.start()
	g := newGroup(ctx)
	in.runStored(g)
	return g.wait()
}

// runStored starts what Run consists of.
func (in *Inbox) runStored(g *group) {
	g.run(in.backlog.workStored)
	g.run(in.declarations.declareLoop)
	g.run(in.sweeper.sweepLoop)
	g.run(in.retention.retentionLoop)
}

// workStored claims and works until ctx ends.
func (bl *backlog) workStored(ctx context.Context) error {
	if len(bl.registry.types) == 0 {
		return nil // Nothing could be claimed: each event is left for a node that knows its type.
	}
	jobs, cancel := linger(ctx, bl.c.StopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, bl.c.Workers)
	finished := make(chan error, bl.c.Workers)
	wait := bl.c.PollMin
	for {
		// 1. As many as there are free workers, at least one.
		select {
		case <-ctx.Done():
			return nil
		case err := <-finished:
			if err != nil {
				return err
			}
			continue
		case free <- struct{}{}:
		}
		<-free
		got, err := bl.claims.claim(jobs, bl.c.Workers-len(free)) // What is claimed when the stop comes must not be lost sight of.
		switch {
		case ctx.Err() != nil:
			for _, s := range got {
				bl.handBack(jobs, s, 0)
			}
			return nil
		case err != nil:
			bl.troubled(err)
		}
		// 2. One worker each: heads of different keys.
		for _, s := range got {
			free <- struct{}{}
			wg.Add(1)
			go func() {
				defer wg.Done()
				err := bl.work(jobs, s, ctx.Done())
				<-free
				if err != nil {
					finished <- err
				}
			}()
		}
		if len(got) > 0 {
			wait = bl.c.PollMin
			continue
		}
		// 3. Nothing is due: look again after a while, sooner when something is stored here.
		t := time.NewTimer(time.Duration((0.75 + 0.5*bl.random()) * float64(wait)))
		wait = min(2*wait, bl.c.PollMax)
		select {
		case <-t.C:
		case <-bl.wakeup:
			wait = bl.c.PollMin
		case err := <-finished:
			t.Stop()
			return err
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// declarations are the types that nodes say they handle.
type declarations struct {
	*env
	registry *registry
}

// declare tells the other nodes which types this one handles.
func (dec *declarations) declare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patrolTimeout)
	defer cancel()
	if _, err := dec.pool.Exec(ctx, dec.sql.declare, dec.c.Consumer, dec.registry.types, dec.node, declareFor.Microseconds()); err != nil {
		return err
	}
	_, err := dec.pool.Exec(ctx, dec.sql.undeclare, dec.c.Consumer)
	return err
}

func (dec *declarations) declareLoop(ctx context.Context) error {
	for {
		wait := declareEvery
		if err := dec.declare(ctx); err != nil && ctx.Err() == nil {
			if mend := miswired(err); mend != nil {
				return mend
			}
			dec.troubled(err)
			wait = time.Second
		}
		if pause(ctx, time.Duration((0.75+0.5*dec.random())*float64(wait))) != nil {
			return nil
		}
	}
}

// linger is a context that ends d after ctx does: for work in hand that may finish.
func linger(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if pause(longer, d) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// group runs functions until one fails or the context ends, and waits for all.
type group struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newGroup(ctx context.Context) *group {
	ctx, cancel := context.WithCancel(ctx)
	return &group{ctx: ctx, cancel: cancel}
}

func (g *group) run(f func(ctx context.Context) error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		if err := f(g.ctx); err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, err)
			g.mu.Unlock()
			g.cancel()
		}
	}()
}

func (g *group) wait() error {
	g.wg.Wait()
	g.cancel()
	return errors.Join(g.errs...)
}
