// Package wait polls for what nobody announces: a row that another session writes, a process that ends. Where an Observer, a
// channel or testing/synctest tells, wait for that instead.
package wait

import (
	"context"
	"fmt"
	"time"
)

// Limit is how long a test waits for what must happen. It is there for what hangs, and shows nothing of how quick something
// is: the machine may be busy.
const Limit = 3 * time.Minute

// The pauses between two looks: the first, and the one that they grow to.
const (
	shortest = time.Millisecond
	longest  = 25 * time.Millisecond
)

// TB is the part of testing.TB that Until needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Until looks until ok returns true. After Limit it ends the test, which then says what never came true.
func Until(t TB, what string, ok func() bool) {
	t.Helper()
	if !For(Limit, ok) {
		t.Fatalf("not within %v: %s", Limit, what)
	}
}

// For looks until ok returns true, for about limit at most, and returns whether it did. It looks at least once.
func For(limit time.Duration, ok func() bool) bool {
	begun := time.Now()
	for pause := shortest; !ok(); pause = min(2*pause, longest) {
		if time.Since(begun) > limit {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Try calls try until it returns nil. When ctx ends first, it returns why, and the error of the last try.
func Try(ctx context.Context, try func(context.Context) error) error {
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}
