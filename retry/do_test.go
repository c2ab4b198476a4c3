package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/go-cmp/cmp"
)

// history is one call of run.do under the virtual clock: when each attempt began and what came of it.
type history struct {
	beganAt []time.Duration // since the start
	took    time.Duration
	err     error
}

// script runs p with random always 0.5. Attempt n fails with errs[n-1], nil being success; the last of errs repeats.
func script(ctx context.Context, p Policy, errs ...error) history {
	var h history
	start := time.Now()
	r := run{ctx: ctx, policy: p.Or(standard()), random: func() float64 { return 0.5 }}
	h.err = r.do(func() error {
		h.beganAt = append(h.beganAt, time.Since(start))
		return errs[min(len(h.beganAt), len(errs))-1]
	}, nil)
	h.took = time.Since(start)
	return h
}

func ms(n ...int) []time.Duration {
	var ds []time.Duration
	for _, n := range n {
		ds = append(ds, time.Duration(n)*time.Millisecond)
	}
	return ds
}

func TestDo_TheScheduleOfAttempts(t *testing.T) {
	t.Parallel()
	odd := errors.New("odd")
	for _, row := range []struct {
		name    string
		policy  Policy
		errs    []error
		beganAt []time.Duration
		reason  string // "" = success
	}{
		{"a success isn't repeated", Policy{}, []error{nil}, ms(0), ""},
		{"a failure is repeated until it succeeds", Policy{}, []error{odd, odd, nil}, ms(0, 50, 150), ""},
		{"the defaults make five attempts", Policy{}, []error{odd}, ms(0, 50, 150, 350, 750), attemptsSpent},
		{"one attempt is one attempt", Policy{Attempts: 1}, []error{odd}, ms(0), attemptsSpent},
		{"waits stop growing at the cap", Policy{Cap: 200 * time.Millisecond}, []error{odd}, ms(0, 50, 150, 250, 350), attemptsSpent},
		{"the budget ends what attempts don't", Policy{Attempts: -1, Budget: 800 * time.Millisecond}, []error{odd},
			ms(0, 50, 150, 350, 750), budgetSpent},
		{"a permanent error isn't repeated", Policy{}, []error{odd, Permanent(odd)}, ms(0, 50), notRetryable},
		{"a permanent error of backoff isn't repeated", Policy{}, []error{backoff.Permanent(odd)}, ms(0), notRetryable},
		{"a permanent error of backoff around nothing is a failure", Policy{}, []error{emptyPermanent{}}, ms(0), notRetryable},
		{"a clash isn't repeated", Policy{}, []error{pg("23505")}, ms(0), notRetryable},
		{"a wait that was asked for replaces ours", Policy{}, []error{After(odd, 3*time.Second), odd, nil}, ms(0, 3000, 3100), ""},
		{"a wait that doesn't fit the budget isn't begun", Policy{}, []error{After(odd, 10*time.Second)}, ms(0), budgetSpent},
		{"no budget outlasts backoff's fifteen minutes", Policy{Attempts: 3, Budget: -1},
			[]error{After(odd, time.Hour)}, ms(0, 3_600_000, 7_200_000), attemptsSpent},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := script(t.Context(), row.policy, row.errs...)
				if diff := cmp.Diff(row.beganAt, h.beganAt); diff != "" {
					t.Errorf("attempts began at (-want +got):\n%s", diff)
				}
				if last := h.beganAt[len(h.beganAt)-1]; h.took != last {
					t.Errorf("waited until %s after the last attempt at %s", h.took, last)
				}
				if row.reason == "" {
					if h.err != nil {
						t.Errorf("err = %v", h.err)
					}
					return
				}
				var gaveUp *GaveUpError
				if !errors.As(h.err, &gaveUp) {
					t.Fatalf("err = %#v", h.err)
				}
				want := GaveUpError{Attempts: len(row.beganAt), Reason: row.reason, Err: row.errs[len(row.errs)-1]}
				if *gaveUp != want {
					t.Errorf("gave up with %+v, want %+v", *gaveUp, want)
				}
			})
		})
	}
}

// emptyPermanent looks like backoff.Permanent(nil) inside, of which backoff.Retry makes a success.
type emptyPermanent struct{}

func (emptyPermanent) Error() string { return "empty" }
func (emptyPermanent) As(target any) bool {
	permanent, ok := target.(**backoff.PermanentError)
	if ok {
		*permanent = &backoff.PermanentError{}
	}
	return ok
}

func TestDo_DoHandsOverTheContextAndSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "x")
		attempts, start := 0, time.Now()
		err := Do(ctx, Policy{}, func(ctx context.Context) error {
			if ctx.Value(key{}) != "x" {
				t.Error("fn got another context")
			}
			if attempts++; attempts < 5 {
				return io.EOF
			}
			return nil
		})
		if err != nil || attempts != 5 {
			t.Errorf("err = %v after %d attempts", err, attempts)
		}
		if took := time.Since(start); took <= 0 || took >= 1500*time.Millisecond {
			t.Errorf("took %s, want within the ceilings of 100, 200, 400 and 800 ms", took)
		}
	})
}

func TestDo_DoRefusesAPolicyThatMakesNoSense(t *testing.T) {
	t.Parallel()
	err := Do(t.Context(), Policy{Attempts: -2}, func(context.Context) error {
		t.Error("fn was called")
		return nil
	})
	want := "retry.Do config: policy attempts is -2: it must be 1 or more, 0 for the default, or -1 for no limit"
	if err == nil || err.Error() != want {
		t.Errorf("err = %v, want %s", err, want)
	}
}

func TestDo_TheTimeAttemptsTakeCountsAgainstTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		err := Do(t.Context(), Policy{Attempts: -1, Budget: 10 * time.Second}, func(context.Context) error {
			attempts++
			time.Sleep(4 * time.Second) // virtual: the attempt takes that long
			return After(io.EOF, time.Second)
		})
		var gaveUp *GaveUpError
		if attempts != 2 || !errors.As(err, &gaveUp) || gaveUp.Reason != budgetSpent {
			t.Errorf("%d attempts, err = %v", attempts, err)
		}
	})
}

func TestDo_WhatHappensBeforeAWaitIsPartOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := run{ctx: t.Context(), policy: standard(), random: func() float64 { return 0.5 }}
		_ = r.do(func() error {
			if r.attempt == 2 {
				return Permanent(io.EOF)
			}
			return After(io.EOF, time.Second)
		}, func(time.Duration) { time.Sleep(300 * time.Millisecond) }) // virtual: draining a body takes that long
		if took := time.Since(start); took != time.Second {
			t.Errorf("waited %s, want 1s", took)
		}
	})
}

func TestDo_APanicPassesThrough(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := recover(); got != "ours" {
			t.Errorf("recovered %v", got)
		}
	}()
	_ = Do(t.Context(), Policy{}, func(context.Context) error { panic("ours") })
}

func TestDo_GivingUpSaysHowOftenAndWhy(t *testing.T) {
	t.Parallel()
	err := error(&GaveUpError{Attempts: 5, Reason: attemptsSpent, Err: fmt.Errorf("ask: %w", context.DeadlineExceeded)})
	if want := "gave up after 5 attempts, attempts spent: ask: context deadline exceeded"; err.Error() != want {
		t.Errorf("err = %q, want %q", err, want)
	}
	timeout := func(err error) bool {
		timed, ok := err.(interface{ Timeout() bool })
		return ok && timed.Timeout()
	}
	if !timeout(err) || timeout(&GaveUpError{Err: io.EOF}) {
		t.Error("Timeout doesn't tell a time-out from another error")
	}
}
