package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// This file handles one stored event that was claimed. Its handler runs, and its row goes or waits for the next attempt.

// backlog handles stored events.
type backlog struct {
	*env
	registry *registry
	runner   *runner
	ledger   *ledger
	claims   *claims
	pauses   *pauses

	dependencies *dependencies
}

// maxInARow is how many events of a key a worker handles before others have a turn.
const maxInARow = 32

// work handles a claimed event and then the events of its key that follow. Each of those is claimed with the end of the one before:
// a claim of its own for each would make a long queue slow. When stop is closed, no other event begins. The error ends Run: too
// many handlers hang.
func (bl *backlog) work(ctx context.Context, s *claimed, stop <-chan struct{}) error {
	defer func() { bl.claims.ended(s) }()
	for n := 1; ; n++ {
		// What tries something goes alone: others wait for what it finds out (trial.go).
		next, err := bl.workOne(ctx, s, n == 1, n < maxInARow && !bl.pauses.stopped() && !bl.dependencies.waits(s.e.Type))
		bl.claims.leave(s)
		if next == nil {
			return err
		}
		select {
		case <-stop:
			bl.handBack(ctx, next, 0)
			return nil
		default:
		}
		if bl.pauses.stopped() || bl.dependencies.waits(next.e.Type) {
			bl.handBack(ctx, next, 0)
			return nil
		}
		failpoint.Hit(failpoint.InboxClaimed)
		s = next
	}
}

// workOne handles one claimed event: it ends, or waits for the next attempt. fresh says that a claim took it, which did not hold its
// key's lock. goOn asks to claim the next event of its key, which is returned.
func (bl *backlog) workOne(ctx context.Context, s *claimed, fresh, goOn bool) (next *claimed, err error) {
	begun := time.Now()
	h := failure.History{
		Attempts:  s.attempts,
		Stored:    true,
		WaitsLong: true,
		Age:       s.age,
	}.FromRow(s.losses)
	// The claim counted this attempt. Earlier claims may have spent all attempts, some of them without an error: then the
	// process ended during each of those. The handler does not run again.
	if previous := s.attempts - 1; previous > 0 && bl.of(s.e.Type).Retry.Last(previous) {
		err := failure.Ours("its handler was started %d times; the process ended or lost it, and nothing was recorded", previous)
		l := letter{
			reason:   "it was started too often and never finished",
			holds:    bl.of(s.e.Type).HoldKey,
			attempts: previous,
			errors:   failure.AppendError(s.errors, err),
			err:      err,
			age:      s.age,
		}
		bl.writeDead(ctx, s, l, begun)
		return nil, nil
	}
	for {
		late := false
		next = nil
		about := handling{
			attempt: s.attempts,
			from:    stateStored,
			hash:    s.hash,
			place:   s.kafkaPartition(),
		}
		err := bl.runner.transactHandler(ctx, bl.of(s.e.Type), func(tx pgx.Tx) error {
			// The wait for a connection may have been long.
			if late = s.late(*bl.of(s.e.Type)); late {
				bounded, cancel := bl.bounded(ctx)
				defer cancel()
				return bl.postpone(bounded, tx, s, 0, nil)
			}
			if fresh && s.e.Key != "" {
				if err := bl.checkHead(ctx, tx, s); err != nil {
					return err
				}
			}
			return bl.runner.handle(ctx, tx, bl.registry.handlers[s.e.Type], []holdfast.Event{s.e}, &about, func(ctx context.Context) (err error) {
				failpoint.Hit(failpoint.InboxRetried)
				if next, err = bl.settle(ctx, tx, s, goOn); err == nil {
					failpoint.Hit(failpoint.InboxSettling)
				}
				return err
			})
		})
		if late {
			if err != nil {
				bl.handBack(ctx, s, 0)
			}
			return nil, nil
		}
		if err == nil {
			failpoint.Hit(failpoint.InboxSettled)
			bl.told(ctx, s, nil, true)
			bl.reportStored(orCaller(about.ctx, ctx), s.e, s.attempts, Handled, time.Since(begun), next != nil)
			return next, nil
		}
		if errors.Is(err, errLeaseLost) {
			if !bl.yield(ctx, s) {
				bl.lost(s)
			}
			return nil, nil
		}
		var f *failure.Error
		if !errors.As(err, &f) {
			return nil, err
		}
		if f.Fault == failure.FaultUnknown {
			if gone, err := bl.gone(ctx, s); err != nil {
				return nil, nil // The lease ends, and the next claim finds out.
			} else if gone {
				bl.told(ctx, s, nil, true)
				bl.reportStored(orCaller(about.ctx, ctx), s.e, s.attempts, Handled, time.Since(begun), next != nil)
				return next, nil
			}
			f.Fault = failure.FaultLost
		}
		var v failure.Verdict
		h.Alone = bl.dependencies.blamed(ctx, f, []holdfast.Event{s.e}, h)
		h, v = h.After(bl.of(s.e.Type).Retry, *f, time.Now(), bl.random())
		cause := v.Failure.Err
		switch {
		case v.Failure.Fault.Outage():
			bl.waitsFor(cause, bl.attrs(s.e)...)
			s.losses = h.Row()
		case v.Failure.Fault == failure.FaultUnavailable:
			s.losses = h.Row()
			bl.told(ctx, s, cause, false)
			v.Delay = max(v.Delay, bl.dependencies.behind(s.e.Type))
		case v.Do == failure.ActAgain && s.late(*bl.of(s.e.Type)): // Another attempt could outlast the lease, and would count without an error.
			v = h.Elsewhere(bl.of(s.e.Type).Retry, v.Failure, bl.random())
		}
		switch v.Do {
		case failure.ActAgain:
			if loop.Sleep(ctx, v.Delay) != nil {
				bl.handBack(ctx, s, 0)
				return nil, nil
			}
			continue
		case failure.ActReturn:
			bl.handBack(ctx, s, 0)
		case failure.ActStore:
			if v.Free {
				bl.handBack(ctx, s, v.Delay)
				break
			}
			bl.writeDown(ctx, s, func(ctx context.Context, tx pgx.Tx) error {
				return bl.postpone(ctx, tx, s, v.Delay, append(s.unsaid(), failure.BoundedError(cause)))
			}, Retrying, begun, func() { bl.retried(about.ctx, s.e, stateStored, s.attempts, v.Delay, true, cause) })
		case failure.ActDead:
			l := letter{
				reason:   bl.because(v.Reason, cause, s.e),
				holds:    bl.of(s.e.Type).HoldKey,
				attempts: s.attempts,
				errors:   failure.AppendError(append(s.errors, s.unsaid()...), cause),
				err:      cause,
				age:      s.age,
				reopen:   true,
			}
			bl.writeDead(ctx, s, l, begun)
		}
		return nil, bl.runner.tooManyHung()
	}
}

// told writes what an event has found out that tried something (trial.go).
func (bl *backlog) told(ctx context.Context, s *claimed, failed error, handled bool) {
	if len(s.tries) > 0 {
		bl.dependencies.tried(ctx, s.tries, s.e, failed, handled)
		s.tries = nil
	}
}

// checkHead returns errLeaseLost unless the event is the head of its key.
func (bl *backlog) checkHead(ctx context.Context, tx pgx.Tx, s *claimed) error {
	ctx, cancel := bl.bounded(ctx)
	defer cancel()
	head := false
	if err := tx.QueryRow(ctx, bl.sql.isHead, bl.c.Consumer, s.e.Topic, s.e.Key, s.place).Scan(&head); err != nil {
		return fmt.Errorf("look for events before it: %w", err)
	}
	if !head {
		return errLeaseLost
	}
	return nil
}

// handBack returns an event whose attempt does not count, because the node stops or the database went away. If that cannot be
// written before the lease ends, or within finishTimeout after the stop, the attempt counts.
func (bl *backlog) handBack(ctx context.Context, s *claimed, delay time.Duration) {
	ctx, cancel := s.leased(ctx)
	defer cancel()
	for wait := 0; ; wait++ {
		err := bl.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error { return bl.postpone(ctx, tx, s, delay, nil) })
		if err == nil || errors.Is(err, errLeaseLost) || poolClosed(err) { // Then the lease ends.
			return
		}
		bl.transient(err)
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, bl.random())) != nil {
			return
		}
	}
}

// yield returns an event that could not commit because a replay has entered the queue before it. The event's lease would keep its
// key waiting. yield returns false if the lease is not ours, or if that cannot be found out.
func (bl *backlog) yield(ctx context.Context, s *claimed) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	return bl.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error { return bl.postpone(ctx, tx, s, 0, nil) }) == nil
}

// writeDown commits a verdict on a stored event. It repeats that for as long as handBack would.
func (bl *backlog) writeDown(ctx context.Context, s *claimed, f func(ctx context.Context, tx pgx.Tx) error, out Outcome, begun time.Time, after func()) {
	ctx, cancel := s.leased(ctx)
	defer cancel()
	inDoubt := false
	for wait := 0; ; wait++ {
		err := bl.runner.transact(ctx, f)
		switch {
		case err == nil, errors.Is(err, errLeaseLost) && inDoubt:
			failpoint.Hit(failpoint.InboxWritten)
			if after != nil {
				after()
			}
			bl.reportStored(ctx, s.e, s.attempts, out, time.Since(begun), false)
			return
		case errors.Is(err, errLeaseLost):
			bl.lost(s)
			return
		case poolClosed(err): // The lease ends.
			return
		}
		var fl *failure.Error
		inDoubt = inDoubt || errors.As(err, &fl) && fl.Fault == failure.FaultUnknown
		bl.transient(err)
		if loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, bl.random())) != nil {
			return
		}
	}
}

// writeDead writes a dead letter, and reports it once it is durable.
func (bl *backlog) writeDead(ctx context.Context, s *claimed, l letter, begun time.Time) {
	var id int64
	bl.writeDown(ctx, s, func(ctx context.Context, tx pgx.Tx) (err error) {
		id, err = bl.giveUp(ctx, tx, s, l)
		return err
	}, Dead, begun, func() { bl.notifyDead(l.observed(ctx, s.e, id), stateStored) })
}

// gone reports that a COMMIT without an answer was carried out: the event's row is gone. It waits for a transaction that still holds
// the row.
func (bl *backlog) gone(ctx context.Context, s *claimed) (bool, error) {
	ctx, cancel := s.leased(ctx)
	defer cancel()
	for wait := 0; ; wait++ {
		gone := false
		err := bl.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
			var one int
			err := tx.QueryRow(ctx, bl.sql.stillStored, bl.c.Consumer, s.e.Topic, s.e.Key, s.place, s.token).Scan(&one)
			gone = errors.Is(err, pgx.ErrNoRows)
			if gone {
				return nil
			}
			return err
		})
		if err == nil || poolClosed(err) {
			return gone, err
		}
		bl.transient(err)
		if err := loop.Sleep(ctx, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait+1, bl.random())); err != nil {
			return false, err
		}
	}
}

func (bl *backlog) lost(s *claimed) {
	bl.c.Logger.Warn("lease on stored event lost", append(bl.attrs(s.e), "attempt", s.attempts, "from_state", stateStored, "to_state", stateStored)...)
	if bl.c.Observer.OnLeaseLost != nil {
		bl.c.Observer.OnLeaseLost(s.e)
	}
}
