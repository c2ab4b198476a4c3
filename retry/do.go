package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Do calls fn until it returns nil, and returns nil then. Zero fields of p are taken from [Defaults].
//
// After a failure it waits as long as the error asks for by [After], else p.Delay, and calls fn again. It gives up when
// the error isn't [Retryable], when p.Attempts or p.Budget is spent or would be by the end of the wait, and when ctx
// has ended or its deadline would pass during the wait; it never sleeps past either. It then returns a [*GaveUpError]
// that wraps the last error of fn, together with ctx's own error if ctx has ended. When ctx has ended before the first
// call, fn isn't called at all. A p that doesn't pass [Policy.Validate] is refused, also without a call.
//
// fn is given ctx as it is. Budget limits when another attempt may begin and doesn't cut one short: let fn derive a
// deadline for each attempt if one may hang. fn is called from the goroutine that called Do, one call at a time; a panic
// in fn passes through. Do may be called from many goroutines at once.
func Do(ctx context.Context, p Policy, fn func(ctx context.Context) error) error {
	p = p.Or(Defaults())
	if err := p.Validate("retry.Policy"); err != nil {
		return err
	}
	r := run{ctx: ctx, policy: p, random: rand.Float64}
	return r.do(func() error { return fn(ctx) }, nil)
}

// GaveUpError is what [Do] returns when it stops trying, and [Transport] when the last attempt brought no response. It
// is a value for reading; it may be shared by goroutines.
type GaveUpError struct {
	// Attempts is how often it was tried, the first try included; 0 when the context had ended before.
	Attempts int

	// Reason is a constant phrase that says why there was no further attempt: "not retryable", "attempts spent",
	// "budget spent", "deadline too near" or "context ended".
	Reason string

	// Err is what the last attempt failed with. When the context has ended, it wraps the context's error as well.
	Err error
}

// Error names the number of attempts, the reason and the last cause.
func (e *GaveUpError) Error() string {
	noun := "attempts"
	if e.Attempts == 1 {
		noun = "attempt"
	}
	return fmt.Sprintf("gave up after %d %s, %s: %v", e.Attempts, noun, e.Reason, e.Err)
}

// Unwrap returns Err, so that errors.Is, errors.As, [Classify], [IsPermanent] and [AfterOf] see the last cause.
func (e *GaveUpError) Unwrap() error { return e.Err }

// Timeout reports whether the last cause is of class [Timeout]. http.Client and net.Error ask for it.
func (e *GaveUpError) Timeout() bool { return Classify(e.Err) == Timeout }

// endedError is a context's end together with what the last attempt had failed with.
type endedError struct{ ended, last error }

func (e *endedError) Error() string   { return fmt.Sprintf("%v; last error: %v", e.ended, e.last) }
func (e *endedError) Unwrap() []error { return []error{e.last, e.ended} }

// run is one sequence of attempts. It is the backoff.BackOff and the backoff.Timer of backoff.Retry, which loops, and it
// keeps everything that is decided here, because three habits of backoff/v4 would lose something:
//
//   - ExponentialBackOff adds jitter after MaxInterval and gives up after 15 minutes unless told otherwise: run asks
//     Policy instead.
//   - Retry looks for backoff.PermanentError in the error and returns what that wraps, which may be nil; it returns the
//     bare context error for a context that ended: run keeps the error, and Retry sees stand-ins.
//   - Retry picks at random between a timer that fired and a context that ended: run looks at the context before each
//     attempt.
type run struct {
	ctx    context.Context
	policy Policy         // Invariant: no zero fields, and passes Validate.
	random func() float64 // in [0,1)

	startAt time.Time // from when the budget counts; zero = from the first attempt
	attempt int       // attempts begun
	err     error     // what the last one failed with
	reason  string    // why there is no further one, "" while there may be
	dueAt   time.Time // when the next attempt begins
	timer   *time.Timer
}

// errAgain stands in for the error of an attempt before backoff.Retry, which must not see it.
var errAgain = errors.New("attempt failed")

// do calls try until it succeeds or run decides to stop. beforeWait, which may be nil, is called when a further attempt
// after wait was decided on; the time it takes is part of the wait.
func (r *run) do(try func() error, beforeWait func(wait time.Duration)) error {
	succeeded := false
	notify := func(_ error, wait time.Duration) {
		if beforeWait != nil {
			beforeWait(wait)
		}
	}
	// The answer of Retry is made of stand-ins, too: succeeded, r.err and r.reason say it all.
	_ = backoff.RetryNotifyWithTimer(func() error {
		if r.ctx.Err() != nil {
			return backoff.Permanent(errAgain)
		}
		r.attempt++
		if r.err = try(); r.err != nil {
			return errAgain
		}
		succeeded = true
		return nil
	}, backoff.WithContext(r, r.ctx), notify, r)
	if succeeded {
		return nil
	}

	gaveUp := &GaveUpError{Attempts: r.attempt, Reason: r.reason, Err: r.err}
	if ended := r.ctx.Err(); ended != nil && r.reason == "" {
		gaveUp.Reason = contextEnded
		switch {
		case r.err == nil:
			gaveUp.Err = ended
		case !errors.Is(r.err, ended):
			gaveUp.Err = &endedError{ended: ended, last: r.err}
		}
	}
	return gaveUp
}

// Reset is called once by backoff.Retry, before the first attempt.
func (r *run) Reset() {
	if r.startAt.IsZero() {
		r.startAt = time.Now()
	}
}

// NextBackOff is called once by backoff.Retry after each failed attempt, unless the context has ended.
func (r *run) NextBackOff() time.Duration {
	now := time.Now()
	f := failure{attempt: r.attempt, err: r.err, elapsed: now.Sub(r.startAt), left: forever}
	if deadline, ok := r.ctx.Deadline(); ok {
		f.left = deadline.Sub(now)
	}
	wait, reason := r.policy.decide(f, r.random())
	if reason != "" {
		r.reason = reason
		return backoff.Stop
	}
	r.dueAt = now.Add(wait)
	return wait
}

// Start counts from the moment of the decision, so that what beforeWait took isn't waited for again.
func (r *run) Start(time.Duration) {
	if r.timer == nil {
		r.timer = time.NewTimer(time.Until(r.dueAt))
		return
	}
	r.timer.Reset(time.Until(r.dueAt))
}

// C is called by backoff.Retry after Start.
func (r *run) C() <-chan time.Time { return r.timer.C }

// Stop is called once by backoff.Retry, at the end; then the timer may never have been started.
func (r *run) Stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}
