package inbox

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/loop"
)

// This file is the loop that tries dependencies that are away: one stored event at a time, on all nodes of the consumer.

// workTrials waits until a dependency may be tried, claims an event that needs it and has it handled, until ctx ends. free are the workers of
// Run, which jobs outlives ctx for. The error ends Run.
func (bl *backlog) workTrials(ctx, jobs context.Context, free chan struct{}, finished chan<- error) {
	wait := bl.c.PollMin
	for ctx.Err() == nil {
		types, next, change := bl.dependencies.due(bl.registry.types, time.Now())
		if running, changed := bl.pauses.running(); !running {
			types, next, change = nil, time.Time{}, changed
		}
		if len(types) == 0 {
			wait = bl.c.PollMin
			rest := time.Hour
			if !next.IsZero() {
				rest = time.Until(next)
			}
			bl.untilChanged(ctx, rest, change)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case free <- struct{}{}:
		}
		tried, err := true, error(nil)
		if !bl.pauses.stopped() { // since it began to wait for a worker
			tried, err = bl.try(ctx, jobs, types)
		}
		<-free
		if err != nil {
			loop.Offer(finished, err)
		}
		if tried {
			wait = bl.c.PollMin
			continue
		}
		bl.untilChanged(ctx, time.Duration((0.75+0.5*bl.random())*float64(wait)), nil) // No event needs it now.
		wait = min(2*wait, bl.c.PollMax)
	}
}

// untilChanged waits for a time, or less.
func (bl *backlog) untilChanged(ctx context.Context, rest time.Duration, change <-chan struct{}) {
	t := time.NewTimer(rest)
	defer t.Stop()
	select {
	case <-t.C:
	case <-change:
	case <-ctx.Done():
	}
}

// try has an event of one of the types try what it needs. tried is false if no event is due, or none may be tried.
func (bl *backlog) try(ctx, jobs context.Context, types []string) (tried bool, err error) {
	got, _, _, err := bl.claims.claimOf(jobs, 1, types, claimMark{})
	if err != nil {
		if ctx.Err() == nil {
			bl.transient(err)
		}
		return false, nil
	}
	bl.vitals.reached()
	if len(got) == 0 {
		return false, nil
	}
	s := got[0]
	turn := bl.turnsOf(s.e.Type)
	names, _ := bl.dependencies.missing(s.e.Type)
	if ctx.Err() != nil || len(names) == 0 || !turn.Try() {
		bl.handBack(jobs, s, 0)
		bl.claims.ended(s)
		return len(names) == 0, nil
	}
	defer turn.Leave()
	if !bl.dependencies.try(jobs, names, bl.lease()) {
		bl.handBack(jobs, s, 0)
		bl.claims.ended(s)
		return true, nil
	}
	s.tries = names
	err = bl.work(jobs, s, ctx.Done())
	bl.told(jobs, s, nil, false) // if it failed for another reason
	return true, err
}
