package inbox

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file is the loop over stored events of a type that has a limit of its own (WithConcurrency). It claims an event only when it has
// a turn and a worker for it: a claimed event that waited for its turn could lose its lease.

// workLimited claims stored events of a type one by one and has them handled, until ctx ends. free are the workers of Run, which jobs
// outlives ctx for. The error ends Run.
func (bl *backlog) workLimited(ctx, jobs context.Context, eventType string, free chan struct{}, workers *sync.WaitGroup, finished chan<- error) {
	t, wait, wakeup := bl.turnsOf(eventType), bl.c.PollMin, bl.kinds[eventType].wakeup
	var mark claimMark
	for ctx.Err() == nil {
		if running, change := bl.pauses.running(); !running {
			select {
			case <-ctx.Done():
			case <-change:
			}
			continue
		}
		if names, change := bl.dependencies.missing(eventType); len(names) > 0 {
			select {
			case <-ctx.Done():
			case <-change:
			}
			mark = claimMark{} // Claims of what tries it have passed others.
			continue
		}
		if !t.Enter(ctx.Done()) {
			return
		}
		select {
		case <-ctx.Done():
			t.Leave()
			return
		case free <- struct{}{}:
		}
		s := bl.claimOne(ctx, jobs, eventType, &mark)
		if s != nil {
			workers.Add(1)
			go func() {
				defer workers.Done()
				err := bl.work(jobs, s, ctx.Done())
				<-free
				t.Leave()
				if err != nil {
					loop.Offer(finished, err)
				}
			}()
			wait = bl.c.PollMin
			continue
		}
		<-free
		t.Leave()
		timer := time.NewTimer(time.Duration((0.75 + 0.5*bl.random()) * float64(wait)))
		wait = min(2*wait, bl.c.PollMax)
		select {
		case <-timer.C:
		case <-wakeup:
			wait = bl.c.PollMin
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// claimOne claims a stored event of a type, from the type's mark on, and moves the mark. It is nil when none is due, and when ctx has
// ended.
func (bl *backlog) claimOne(ctx, jobs context.Context, eventType string, mark *claimMark) *claimed {
	if bl.pauses.stopped() || bl.dependencies.waits(eventType) { // since the loop began to wait for its turn
		return nil
	}
	got, whole, begun, err := bl.claims.claimOf(jobs, 1, []string{eventType}, *mark)
	switch {
	case err != nil && ctx.Err() == nil:
		bl.transient(err)
		return nil
	case err == nil:
		*mark = mark.after(got, whole, begun, time.Now())
		bl.vitals.reached()
	}
	switch {
	case len(got) == 0:
		return nil
	case ctx.Err() != nil:
		bl.handBack(jobs, got[0], 0)
		bl.claims.ended(got[0])
		return nil
	}
	return got[0]
}
