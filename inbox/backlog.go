package inbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file is the loop over stored events.

// workStored claims stored events and has them handled, until ctx ends.
func (bl *backlog) workStored(ctx context.Context) error {
	if len(bl.registry.types) == 0 {
		return nil // It could claim nothing: each event waits for a node that knows its type.
	}
	jobs, cancel := loop.WithGrace(ctx, bl.c.StopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	free := make(chan struct{}, bl.c.Workers)
	finished := make(chan error, 1)
	for _, t := range bl.registry.types {
		if bl.turnsOf(t) != nil {
			wg.Go(func() { bl.workLimited(ctx, jobs, t, free, &wg, finished) })
		}
	}
	if slices.ContainsFunc(bl.registry.types, func(t string) bool { return len(bl.kinds[t].needs) > 0 }) {
		wg.Go(func() { bl.workTrials(ctx, jobs, free, finished) })
	}
	wait := bl.c.PollMin
	for {
		if running, change := bl.pauses.running(); !running {
			select {
			case <-ctx.Done():
				return nil
			case err := <-finished:
				if err != nil {
					return err
				}
			case <-change:
			}
			continue
		}
		// 1. Claim as many events as there are free workers, at least one.
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
		if bl.pauses.stopped() { // since it began to wait for a worker
			continue
		}
		got, err := bl.claims.claim(jobs, max(bl.c.Workers-len(free), 1)) // A claim that a stop cuts short would leave its leases.
		switch {
		case ctx.Err() != nil:
			for _, s := range got {
				bl.handBack(jobs, s, 0)
				bl.claims.ended(s)
			}
			return nil
		case err != nil:
			bl.transient(err)
		}
		// 2. Each worker handles one of them. They are heads of different keys.
		for _, s := range got {
			free <- struct{}{}
			wg.Add(1)
			go func() {
				defer wg.Done()
				err := bl.work(jobs, s, ctx.Done())
				<-free
				if err != nil {
					loop.Offer(finished, err)
				}
			}()
		}
		if len(got) > 0 {
			wait = bl.c.PollMin
			continue
		}
		// 3. Nothing is due. Look again after a while, or as soon as this node stores an event.
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
