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
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/steps"
)

// This file runs the steps of handlers that call other systems. Each is recorded in a transaction of its own, beside the handler's, so that it
// stays recorded when the handler's is rolled back.

// Errors of Step, beside those of package steps.
var (
	errNoRun = errors.New("the context is not that of a handler, or the handler has returned")
	errBatch = errors.New("its handler gets batches, and a step belongs to one event: register the type with Handle or On")
)

// MaxStepResult is the maximum length of a step's result, in bytes of JSON.
const MaxStepResult = 64 << 10

// Step runs a part of a handler that calls another system, and records its result, so that no later attempt to handle the event calls again:
//
//	charge, err := inbox.Step(ctx, "charge", func(ctx context.Context, key string) (Charge, error) {
//		return stripe.Charge(ctx, key, order.Cents) // key goes into the Idempotency-Key of the request
//	})
//
// If fn returns nil, its result is recorded at once, in a transaction of its own, and stays recorded if the handler fails later. Whenever the
// handler runs again for the event, here or on another node, after a crash, an error or a replay of its dead letter, Step returns the recorded
// result and does not call fn. If fn returns an error, nothing is recorded, and Step returns the error.
//
// A process can die after the call and before the record. Then the next attempt calls fn again, with the same key: so give it to
// the other system, which can know by it that it has seen the call. With a system that honors such keys the effect comes once. With another one it may come
// once more for each attempt that ends between call and record: by a crash, a lost database, or a time-out.
//
// The key has 64 hexadecimal digits. It is made of consumer, event and name, and stays the same for all attempts, nodes and replays. The
// event is its source and id, its type and its payload: if a person edits the payload of its dead letter, its steps have other keys and run again. Two
// versions of one webhook event, as Stripe sends them to two endpoints, have the same keys.
//
// Steps run one at a time, and not inside another. Use a name once in a handler, of 1 to 128 bytes. Keep it the same in every version of the handler, and its
// result readable. The result goes through JSON, the first time too, and has at most MaxStepResult bytes. One that cannot be recorded is an error after
// the call, which the next attempt makes again. The result is kept as long as the event's row in the table inbox, and as long as the event waits or its dead
// letter is open.
//
// Step needs a second connection for a moment, before and after fn. If the pool has given out all for longer, it opens one beside the pool, for one handler at a
// time, and the log says so. A handler with steps shares its transaction with no other. The handler's own writes and events belong into its transaction,
// not into fn: what fn does is not undone.
func Step[T any](ctx context.Context, name string, fn func(ctx context.Context, key string) (T, error)) (T, error) {
	r, _ := ctx.Value(runKey{}).(*run)
	err := r.maySteps()
	if err == nil {
		err = steps.Recordable[T]()
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("step %q: %w", name, err)
	}
	return steps.Do[T](ctx, &r.steps, name, func(ctx context.Context) ([]byte, error) {
		return r.step(ctx, name, func(key string) ([]byte, error) {
			value, err := fn(ctx, key)
			if err != nil {
				return nil, foreign.Error(err)
			}
			text, err := steps.Text(value, MaxStepResult)
			if err != nil {
				r.unrecorded(name, key, err)
			}
			return text, err
		})
	})
}

// maySteps says why a run has no steps. r may be nil.
func (r *run) maySteps() error {
	switch {
	case r == nil || r.tx == nil || r.tx.Over():
		return errNoRun
	case r.runner.kinds[r.events[0].Type].said.batch:
		return errBatch
	default:
		return r.tx.Own() // Others in the transaction would wait for the call.
	}
}

// stepFault is an error of our own statements in a step: the handler is not to blame.
type stepFault struct{ err error }

func (f *stepFault) Error() string { return f.err.Error() }
func (f *stepFault) Unwrap() error { return f.err }

// step returns the recorded result of a step, or calls do and records what that returns.
func (r *run) step(ctx context.Context, name string, do func(key string) ([]byte, error)) (result []byte, err error) {
	s := Stepped{
		Context: ctx,
		Event:   r.events[0],
		Attempt: r.attempt,
		Step:    name,
		Result:  StepFailed,
	}
	s.Key = steps.Key(r.runner.c.Consumer, s.Event.Source, s.Event.ID, steps.Hash(r.hash), name)
	begun := time.Now()
	defer func() {
		s.Took, s.Err = time.Since(begun), err
		if r.runner.c.Observer.OnStep != nil {
			r.runner.c.Observer.OnStep(s)
		}
	}()
	switch result, err = r.look(name); {
	case err != nil:
		return nil, err
	case result != nil:
		s.Result = StepKnown
		return result, nil
	}
	failpoint.Hit(failpoint.InboxStepping)
	if result, err = do(s.Key); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.InboxStepped)
	if result, err = r.record(name, result); err != nil {
		r.unrecorded(name, s.Key, err)
		return nil, &stepFault{fmt.Errorf("it was done, and not recorded: %w", err)}
	}
	failpoint.Hit(failpoint.InboxStepRecorded)
	s.Result = StepDone
	return result, nil
}

// unrecorded logs that a step was done, and will be once more.
func (r *run) unrecorded(name, key string, err error) {
	r.runner.c.Logger.Warn("step was done and not recorded: it runs again, with the same key", append(r.runner.attrs(r.events[0]), "attempt", r.attempt, "step", name, "step_key", key, "error", loggedError(err))...)
}

// look returns the recorded result of a step, nil if there is none. It leaves half of the handler's time to what comes next, so that a database that does not
// answer is not taken for a handler that takes too long. That is to blame if it has used up half of its time before.
func (r *run) look(name string) (result []byte, err error) {
	all := r.runner.of(r.events[0].Type).Timeout
	left := all
	if end, ends := r.ctx.Deadline(); ends {
		left = time.Until(end)
	}
	bounded, cancel := context.WithTimeout(r.ctx, left/2)
	defer cancel()
	if result, err = r.recorded(bounded, name); err != nil && left > all/2 {
		err = &stepFault{err}
	}
	return result, err
}

// recorded returns the recorded result of a step, nil if there is none.
func (r *run) recorded(ctx context.Context, name string) (result []byte, err error) {
	e := r.events[0]
	err = r.runner.transactBeside(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var text string
		err := tx.QueryRow(ctx, r.runner.sql.step, r.runner.c.Consumer, e.Source, e.ID, steps.Hash(r.hash), name).Scan(&text)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			result = nil
			return nil
		case err != nil:
			return fmt.Errorf("look whether it is recorded: %w", err)
		}
		result = []byte(text)
		return nil
	})
	return result, err
}

// record records the result of a step, and returns what is recorded: another run, which had lost its event to this one or has taken it from it, may have
// been first. It waits for the database beyond the handler's time, but not for so long that the handler would count as hung.
func (r *run) record(name string, result []byte) ([]byte, error) {
	longer, end := loop.WithGrace(r.ctx, r.runner.c.Grace/2)
	defer end()
	e := r.events[0]
	for wait := 1; ; wait++ {
		mine := false
		err := r.runner.transactBeside(longer, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, r.runner.sql.stepDone, r.runner.c.Consumer, e.Source, e.ID, steps.Hash(r.hash), name, e.Key, string(result))
			if err != nil {
				return fmt.Errorf("record it: %w", err)
			}
			mine = tag.RowsAffected() == 1
			return nil
		})
		if err == nil && mine {
			return result, nil
		}
		if err == nil {
			var first []byte
			if first, err = r.recorded(longer, name); err == nil && first != nil {
				return first, nil
			}
			if err == nil {
				err = errors.New("what another run has recorded was removed")
			}
		}
		var f *failure.Error
		if poolClosed(err) || errors.As(err, &f) && f.Fault == failure.FaultEvent { // Postgres refuses the result, however often it gets it.
			return nil, err
		}
		r.runner.transient(err)
		if loop.Sleep(longer, loop.Spread(loop.DatabaseBase, loop.DatabaseCap, wait, r.runner.random())) != nil {
			return nil, err
		}
	}
}

// Stepped is a step of a handler that has ended (Step).
type Stepped struct {
	Context context.Context // the handler's
	Event   holdfast.Event
	Attempt int // of the handler, from 1
	Step    string
	Key     string // that its function got
	Result  StepResult
	Took    time.Duration
	Err     error // why it failed; nil unless it did, and if its function panicked
}

// StepResult says how a step ended.
type StepResult string

// How a step ends.
const (
	StepDone   StepResult = "done"   // its function ran, and its result is recorded
	StepKnown  StepResult = "known"  // its result was recorded by an earlier run
	StepFailed StepResult = "failed" // its function failed, or the database did
)
