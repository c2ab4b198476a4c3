package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Do calls fn until it returns nil, and then returns nil. Zero fields of p default to 5 attempts, 100 ms base, 2 s cap and 10 s in
// all. The waits have full jitter: between nothing and 100, 200, 400 and 800 ms.
//
// After a failure Do waits as long as the error asks for with [After], otherwise for p.Delay, and calls fn again. It gives up if the
// error isn't [Retryable]. It also gives up if p.Attempts is spent, or if p.Budget or ctx has ended or would end during the
// wait. It never sleeps past either end. It then returns a [*GaveUpError] that wraps the last error of fn, and ctx's own error if ctx
// has ended. If ctx has ended before the first call, Do doesn't call fn. Do refuses a p that doesn't pass [Policy.Validate], also
// without a call.
//
// fn gets ctx unchanged. Budget limits when another attempt may begin; it doesn't cut an attempt short. If an attempt
// may hang, let fn derive a deadline for each one. Do calls fn from its own goroutine, one call at a time. A panic in
// fn passes through. Many goroutines may call Do at once.
func Do(ctx context.Context, p Policy, fn func(ctx context.Context) error) error {
	p = p.Or(standard())
	if err := p.Validate("policy"); err != nil {
		return fmt.Errorf("retry.Do config: %w", err)
	}
	r := run{ctx: ctx, policy: p, random: rand.Float64}
	return r.do(func() error { return fn(ctx) }, nil)
}

// GaveUpError is the error of [Do] when it stops trying, and of [Transport] when the last attempt brought no response.
// It is read-only; goroutines may share it.
type GaveUpError struct {
	// Attempts is the number of attempts, the first included; 0 if the context had ended before.
	Attempts int

	// Reason is a constant phrase that says why there was no further attempt: "not retryable", "attempts spent",
	// "budget spent", "deadline too near" or "context ended".
	Reason string

	// Err is the error of the last attempt. If the context has ended, it also wraps the context's error.
	Err error
}

// Error names the number of attempts, the reason and the last cause.
func (e *GaveUpError) Error() string {
	noun := "attempts"
	if e.Attempts == 1 {
		noun = "attempt"
	}
	return fmt.Sprintf("gave up after %d %s, %s: %s", e.Attempts, noun, e.Reason, foreign.Text(e.Err))
}

// Unwrap returns Err, so that errors.Is, errors.As, [Classify], [IsPermanent] and [AfterOf] see the last cause.
func (e *GaveUpError) Unwrap() error { return e.Err }

// Timeout reports whether the last cause is of class [Timeout]. http.Client and net.Error use it.
func (e *GaveUpError) Timeout() bool { return Classify(e.Err) == Timeout }

// endedError is the end of a context together with the error of the last attempt.
type endedError struct{ ended, last error }

func (e *endedError) Error() string {
	return fmt.Sprintf("%v; last error: %s", e.ended, foreign.Text(e.last))
}
func (e *endedError) Unwrap() []error { return []error{e.last, e.ended} }

// run is one sequence of attempts. backoff.Retry runs the loop, with run as its backoff.BackOff and its backoff.Timer.
// run makes all decisions itself, because three properties of backoff/v4 would lose something:
//
//   - ExponentialBackOff adds jitter after MaxInterval and by default gives up after 15 minutes. run asks Policy
//     instead.
//   - Retry looks for backoff.PermanentError in the error and returns what that wraps, which may be nil. For a context
//     that ended it returns the bare context error. run keeps the error, and Retry sees stand-ins.
//   - Retry picks at random between a timer that fired and a context that ended. run checks the context before each
//     attempt.
type run struct {
	ctx    context.Context
	policy Policy         // Invariant: no zero fields, and passes Validate.
	random func() float64 // in [0,1)

	crowd   bool      // waits that were asked for were told to many clients
	startAt time.Time // start of the budget; zero = the first attempt
	attempt int       // attempts begun
	err     error     // error of the last attempt
	reason  string    // why there is no further attempt; "" while there may be one
	dueAt   time.Time // when the next attempt begins
	timer   *time.Timer
}

// errAgain stands in for the error of an attempt; backoff.Retry must not see the real one.
var errAgain = errors.New("attempt failed")

// do calls try until it succeeds or run decides to stop. beforeWait, which may be nil, is called when another attempt
// was decided on. The time it takes is part of the wait.
func (r *run) do(try func() error, beforeWait func(wait time.Duration)) error {
	succeeded := false
	notify := func(_ error, wait time.Duration) {
		if beforeWait != nil {
			beforeWait(wait)
		}
	}
	// Retry returns only stand-ins, so its answer is ignored: succeeded, r.err and r.reason have everything.
	_ = backoff.RetryNotifyWithTimer(func() error {
		if r.ctx.Err() != nil {
			return backoff.Permanent(errAgain)
		}
		r.attempt++
		if r.err = foreign.Error(try()); r.err != nil {
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
	f := failure{
		attempt: r.attempt,
		err:     r.err,
		elapsed: now.Sub(r.startAt),
		left:    forever,
		crowd:   r.crowd,
	}
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

// Start counts from the moment of the decision, so the time that beforeWait took isn't waited for again.
func (r *run) Start(time.Duration) {
	if r.timer == nil {
		r.timer = time.NewTimer(time.Until(r.dueAt))
		return
	}
	r.timer.Reset(time.Until(r.dueAt))
}

// C is called by backoff.Retry after Start.
func (r *run) C() <-chan time.Time { return r.timer.C }

// Stop is called once by backoff.Retry, at the end. The timer may never have been started.
func (r *run) Stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}
