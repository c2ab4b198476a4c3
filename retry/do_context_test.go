package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDoContext_AContextThatEndedBeforeMeansNoAttempt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Do(ctx, Policy{}, func(context.Context) error {
		t.Error("fn was called")
		return nil
	})
	var gaveUp *GaveUpError
	if !errors.As(err, &gaveUp) || gaveUp.Attempts != 0 || gaveUp.Reason != contextEnded || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %#v", err)
	}
}

func TestDoContext_AContextThatEndsDuringAWaitEndsItAndTheCauseIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		time.AfterFunc(time.Second, cancel)
		attempts := 0
		err := Do(ctx, Policy{}, func(context.Context) error {
			attempts++
			return After(fmt.Errorf("ask: %w", io.EOF), 5*time.Second)
		})
		if took := time.Since(start); attempts != 1 || took != time.Second {
			t.Errorf("%d attempts, took %s, want 1 and 1s", attempts, took)
		}
		if !errors.Is(err, context.Canceled) || !errors.Is(err, io.EOF) {
			t.Errorf("err = %v, want it to wrap the context's error and the cause", err)
		}
		want := "gave up after 1 attempt, context ended: context canceled; last error: ask: EOF"
		if err.Error() != want {
			t.Errorf("err = %q, want %q", err, want)
		}
		if d, ok := AfterOf(err); !ok || d != 5*time.Second {
			t.Errorf("the wait asked for is lost: %s, %t", d, ok)
		}
		if got := Classify(err); got != Unavailable {
			t.Errorf("class %q, want that of the cause", got)
		}
	})
}

func TestDoContext_NoAttemptFollowsOneDuringWhichTheContextEnded(t *testing.T) {
	t.Parallel()
	// With no wait the timer and the context are ready at once, and backoff.Retry picks either: many rounds see both.
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		err := Do(ctx, Policy{}, func(ctx context.Context) error {
			attempts++
			cancel()
			return After(ctx.Err(), 0)
		})
		if attempts != 1 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d attempts, err = %v", attempts, err)
		}
		if want := "gave up after 1 attempt, context ended: context canceled"; err.Error() != want {
			t.Fatalf("err = %q, want %q", err, want)
		}
	}
}

func TestDoContext_NoAttemptBeginsWhenTheContextEndsAfterTheDecision(t *testing.T) {
	t.Parallel()
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		r := run{ctx: ctx, policy: standard(), random: func() float64 { return 0 }}
		err := r.do(func() error { return io.EOF }, func(time.Duration) { cancel() })
		if r.attempt != 1 || !errors.Is(err, context.Canceled) || !errors.Is(err, io.EOF) {
			t.Fatalf("%d attempts, err = %v", r.attempt, err)
		}
	}
}

func TestDoContext_AWaitThatWouldPassTheDeadlineIsNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		h := script(ctx, Policy{Attempts: -1}, io.EOF)
		if diff := cmp.Diff(ms(0, 50, 150, 350), h.beganAt); diff != "" || h.took != 350*time.Millisecond {
			t.Errorf("took %s, attempts began at (-want +got):\n%s", h.took, diff)
		}
		var gaveUp *GaveUpError
		if !errors.As(h.err, &gaveUp) || gaveUp.Reason != deadlineNear || !errors.Is(h.err, io.EOF) {
			t.Errorf("err = %v", h.err)
		}
		if errors.Is(h.err, context.DeadlineExceeded) {
			t.Error("it says that a deadline was exceeded, which it wasn't")
		}
	})
}
