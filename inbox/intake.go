package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
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
	skips        *skips
	pauses       *pauses
	dependencies *dependencies
}

// errOneByOne ends a transaction of several events that have to come one by one. In a batch, one is known or has to wait for
// its key. Among followers, one is known, nothing is before them any more, or there is no room. In a group, a handler
// needs a transaction of its own, none of the events may be handled now, or somebody else has recorded one meanwhile.
var errOneByOne = errors.New("the events have to come one by one")

// errStopping is returned instead of a delay when there is no time for one.
var errStopping = errors.New("the node is stopping")

// receive tries until an attempt commits. failed is the error of a first attempt that was already made; nil if there was none.
//
// An error means that nothing was decided: ctx ended, another node has the partition, the caller waits no longer, or there is
// no room for the event (the error wraps ErrFull). t then holds what was found out: if the same t is given to
// receive again, a handler that has failed is not run once more.
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
		var f *failure.Error
		failing := errors.As(err, &f)
		if !failing || f.Fault != failure.FaultUnknown { // else it may be stored
			rec.queues.quota.leave(d)
		}
		if errors.Is(err, errUnqueued) {
			continue
		}
		if !failing {
			return "", err
		}
		d.inDoubt = d.inDoubt || f.Fault == failure.FaultUnknown
		if h.Decided && f.Fault == failure.FaultEvent {
			if t.refused++; t.refused == maxRefused {
				t.next = rec.runner.within(rec.unrecordable(t, f.Err))
			}
		}
		var v failure.Verdict
		h.Alone = rec.dependencies.blamed(ctx, f, []holdfast.Event{d.e}, *h)
		*h, v = h.After(rec.of(d.e.Type).Retry, *f, time.Now(), rec.random())
		cause := v.Failure.Err
		if v.Failure.Fault.Outage() {
			rec.transientOf(d, cause)
		}
		if v.Failure.Fault == failure.FaultUnavailable {
			v.Delay = max(v.Delay, rec.dependencies.behind(d.e.Type))
		}
		if v.Do == failure.ActAgain && !v.Free {
			rec.retried(d.context(), d.e, stateNone, h.Attempts, v.Delay, false, cause)
		}
		stopped := false
		if v.Do == failure.ActAgain {
			if stopped, err = t.pause(ctx, v.Delay); err != nil {
				return "", t.doubted(err)
			}
		}
		if stopped && !v.Free { // Store the event: its attempts are kept there.
			v = h.Elsewhere(rec.of(d.e.Type).Retry, v.Failure, rec.random())
		}
		switch {
		case v.Do == failure.ActReturn:
			return "", t.doubted(cause)
		case v.Do == failure.ActAgain && stopped:
			return "", t.doubted(errStopping)
		case v.Do == failure.ActAgain && v.Free:
		case v.Do == failure.ActAgain:
			t.failures = failure.AppendError(t.failures, cause)
			t.next = rec.alone(d, h.Attempts+1)
		default:
			var s task
			s, t.failures = rec.afterFailure(d, *h, v, t.failures)
			t.next, h.Decided = rec.runner.within(s), true
		}
	}
}

// pause waits before the next attempt. stopped reports that there is no time for one.
func (i *intake) pause(ctx context.Context, d time.Duration) (stopped bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, ctx.Err()
	case <-i.stop:
		return true, ctx.Err()
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// doubted adds ErrOutcomeUnknown to an error if the event may have been handled.
func (i *intake) doubted(err error) error {
	if i.d.inDoubt {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return err
}

// afterFailure is the task that writes a verdict.
func (rec *receiver) afterFailure(d *delivery, h failure.History, v failure.Verdict, failures []string) (task, []string) {
	attempts, err := h.Attempts, v.Failure.Err
	losses := 0
	if v.Failure.Fault == failure.FaultUnavailable { // Its word is said.
		losses = h.Row()
	}
	as := Stored // v.Free: its row tells of no failure.
	if !v.Free {
		as, failures = Retrying, failure.AppendError(failures, err)
	}
	age := func() time.Duration { // At the time of writing, which may come long after the verdict.
		if h.First.IsZero() {
			return h.Age
		}
		return time.Since(h.First)
	}
	if v.Do == failure.ActDead {
		l := letter{
			reason:   rec.because(v.Reason, err, d.e),
			holds:    rec.of(d.e.Type).HoldKey,
			attempts: attempts,
			errors:   failures,
			err:      err,
			reopen:   true,
		}
		return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			l.age = age()
			return rec.ledger.deadLetter(ctx, tx, d, l, Dead)
		}, failures
	}
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		out, perr := rec.queues.store(ctx, tx, d, past{attempts, failures, age(), losses}, &v.Delay, as)
		if perr == nil && out == Retrying {
			d.after = func() { rec.retried(d.context(), d.e, stateNone, attempts, v.Delay, true, err) }
		}
		return out, perr
	}, failures
}

// maxRefused is how often Postgres may refuse the outcome of an event before the event becomes a dead letter without an inbox row.
const maxRefused = 3

// unrecordable is the task for an event whose outcome Postgres refuses to record, for a reason that lies in the event. Without it
// the event would hold its partition for good. Without a row it is handled anew if it comes again.
func (rec *receiver) unrecordable(t *intake, err error) task {
	l := letter{
		reason:   "Postgres refuses to record what became of it",
		holds:    rec.of(t.d.e.Type).HoldKey,
		attempts: t.h.Attempts,
		errors:   failure.AppendError(t.failures, err),
		err:      err,
		reopen:   true,
	}
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.ledger.letterAlone(ctx, tx, t.d, l) }
}

// first is the first attempt of an intake.
func (rec *receiver) first(t *intake) attemptFunc {
	if t.task != nil {
		return rec.runner.within(t.task)
	}
	return rec.alone(t.d, 1)
}

// alone is an attempt to take an event in, in a transaction of two round trips.
func (rec *receiver) alone(d *delivery, number int) attemptFunc {
	if d.manner == mannerTry {
		return rec.runner.withinHandler(rec.of(d.e.Type), rec.trying(d, func(ctx context.Context, tx pgx.Tx) (Outcome, error) { return rec.admission.admit(ctx, tx, d, number) }))
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

// trying is a task that runs only under the event's lock. The lock ends with its transaction, when the commit is visible. So a
// caller that does not get the lock looks whether the event is known by now.
func (rec *receiver) trying(d *delivery, s task) task {
	return func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		number := lane.Number(rec.c.Schema, rec.c.Consumer, d.e.Source, d.e.ID)
		var mine bool
		bounded, cancel := rec.bounded(ctx)
		defer cancel()
		if err := tx.QueryRow(bounded, rec.sql.tryLock, int32(tryClass), number).Scan(&mine); err != nil {
			return "", fmt.Errorf("lock the event: %w", err)
		}
		if mine {
			return s(ctx, tx)
		}
		out, err := rec.ledger.known(bounded, tx, d)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", ErrInFlight
		}
		return out, err
	}
}

// TryReceive and TryStore are for senders that wait for an answer and send again, such as those of webhooks. While the first
// copy of an event is being handled, a second copy must not be acknowledged, because the first may still fail. Nor may it
// wait with a connection of the pool: a few of them would leave none for the handlers.

// tryClass is "hftr" in ASCII, a class of advisory locks, as position.FenceClass is: an event that is being tried.
const tryClass = 0x68667472
