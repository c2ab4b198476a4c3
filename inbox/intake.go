package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/lane"
)

// This file brings one event to its outcome, attempt after attempt.

// receiver takes events in.
type receiver struct {
	*env
	registry     *registry
	admission    *admission
	runner       *runner
	ledger       *ledger
	queues       *queues
	declarations *declarations
}

// errStopping is returned where there was something to wait for, and no time for it.
var errStopping = errors.New("told to stop")

// receive tries until an attempt commits. failed is the error of a first attempt that was made already, nil where none was.
//
// An error means that nothing is decided: ctx ended, another node has the partition, no more is waited for, or, where it
// wraps ErrFull, there is no room for what was decided. Then t holds all that was found out, and may be given to receive
// again: a handler that has failed is not run a second time.
func (rec *receiver) receive(ctx context.Context, t *intake, failed error) (Outcome, error) {
	d, h := t.d, &t.h
	if t.next == nil {
		t.next = rec.first(t)
	}
	for {
		var out Outcome
		err := failed
		if failed = nil; err == nil {
			d.after = nil
			out, err = t.next(ctx)
		}
		if err == nil {
			failpoint.Hit(failpoint.InboxDecided)
			rec.report(d, out, time.Since(t.begun))
			return out, nil
		}
		if errors.Is(err, errUnqueued) {
			continue
		}
		var f *failure
		if !errors.As(err, &f) {
			return "", err
		}
		d.inDoubt = d.inDoubt || f.fault == faultUnknown
		var v verdict
		*h, v = h.after(rec.c.Retry, *f, time.Now(), rec.random())
		cause := v.failure.err
		if v.failure.fault.outage() {
			rec.transientOf(d, cause)
		}
		if v.do == actAgain && !v.free {
			rec.retried(d.e, h.attempts, v.delay, false, cause)
		}
		told := false
		if v.do == actAgain {
			if told, err = t.pause(ctx, v.delay); err != nil {
				return "", t.doubted(err)
			}
		}
		if told && !v.free { // Its attempts are kept where they are not lost.
			v = h.elsewhere(rec.c.Retry, v.failure, rec.random())
		}
		switch {
		case v.do == actReturn:
			return "", t.doubted(cause)
		case v.do == actAgain && told:
			return "", t.doubted(errStopping)
		case v.do == actAgain && v.free:
		case v.do == actAgain:
			t.failures = appendError(t.failures, cause)
			t.next = rec.alone(d, h.attempts+1)
		default:
			var s step
			s, t.failures = rec.afterFailure(d, *h, v, t.failures)
			t.next, h.decided = rec.runner.within(s), true
		}
	}
}

// pause waits before the next attempt. told: it is to be given up instead.
func (t *intake) pause(ctx context.Context, d time.Duration) (told bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, ctx.Err()
	case <-t.stop:
		return true, ctx.Err()
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// doubted says of an error whether the event may have been handled nevertheless.
func (t *intake) doubted(err error) error {
	if t.d.inDoubt {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// afterFailure is the step that writes a verdict down.
func (rec *receiver) afterFailure(d *delivery, h history, v verdict, failures []string) (step, []string) {
	attempts, err := h.attempts, v.failure.err
	failures = appendError(failures, err)
	age := func() time.Duration { // when it is written: that may be long after the verdict, for want of room or of a database
		if h.first.IsZero() {
			return h.age
		}
		return time.Since(h.first)
	}
	if v.do == actDead {
		l := letter{reason: v.reason, holds: rec.c.HoldKey, attempts: attempts, errors: failures, err: err, reopen: true}
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			l.age = age()
			return rec.ledger.deadLetter(ctx, tx, d, l, Dead)
		}, failures
	}
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		out, perr := rec.queues.park(ctx, tx, d, past{attempts, failures, age()}, &v.delay, Retrying)
		if perr == nil && out == Retrying {
			d.after = func() { rec.retried(d.e, attempts, v.delay, true, err) }
		}
		return out, perr
	}, failures
}

// first is the attempt that an intake begins with.
func (rec *receiver) first(t *intake) attemptFunc {
	if t.step != nil {
		return rec.runner.within(t.step)
	}
	return rec.alone(t.d, 1)
}

// alone is an attempt that takes an event in, in a transaction of two round trips.
func (rec *receiver) alone(d *delivery, number int) attemptFunc {
	if d.manner == mannerTry {
		return rec.runner.within(rec.trying(d, func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.admission.admit(ctx, tx, d, number) }))
	}
	return func(ctx context.Context) (Outcome, error) {
		p := pipeline{admission: rec.admission}
		out, err := p.openAndRun(ctx, attempt{ds: []*delivery{d}, number: number})
		if err == nil {
			err = p.commit(ctx)
		}
		return out, err
	}
}

// trying is a step that is taken only by the holder of the event's lock. The lock goes with the transaction, once its
// commit can be seen: so the one who does not get it looks whether the event is known by now.
func (rec *receiver) trying(d *delivery, s step) step {
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		number := lane.Number(rec.c.Schema, rec.c.Consumer, d.e.Source, d.e.ID)
		var mine bool
		if err := tx.QueryRow(ctx, rec.sql.tryLock, int32(tryClass), number).Scan(&mine); err != nil {
			return "", fmt.Errorf("lock the event: %w", err)
		}
		if mine {
			return s(ctx, tx)
		}
		out, err := rec.ledger.known(ctx, tx, d)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", ErrInFlight
		}
		return out, err
	}
}

// TryReceive and TryStore are for senders that wait for an answer and send again by themselves, as those of webhooks do. A
// second copy of an event whose first is being handled must not be acknowledged, because the first may yet fail; nor may
// it wait for the first with a connection of the pool, because a few of them would leave none for the handlers.

// tryClass is "hftr" in ASCII, beside those in fence.go: an event that is being tried.
const tryClass = 0x68667472
