// Package wait polls for what nobody announces: a row that another session writes, a process that ends. Where an Observer, a
// channel or testing/synctest tells, wait for that instead.
package wait

import (
	"context"
	"flag"
	"fmt"
	"runtime/pprof"
	"strings"
	"time"
)

// began is when this test binary did, but for its start.
var began = time.Now()

// Limit is how long a test waits for what must happen: until shortly before go test's own time-out, so that what hangs is
// said by the test that waits for it. It shows nothing of how quick something is: the machine may be busy.
func Limit() time.Duration {
	timeout := time.Duration(0)
	if f := flag.Lookup("test.timeout"); f != nil {
		timeout, _ = f.Value.(flag.Getter).Get().(time.Duration)
	}
	return limit(timeout, time.Since(began))
}

// limit is Limit for a time-out of go test, 0 for none, of which so much is spent: by the clock of testing/synctest, which
// begins in the past, nothing is.
func limit(timeout, spent time.Duration) time.Duration {
	if timeout <= 0 {
		return withoutTimeout
	}
	return max(timeout-max(spent, 0)-toSayIt, timeout/20)
}

const (
	// withoutTimeout is the limit where go test has none.
	withoutTimeout = 10 * time.Minute
	// toSayIt is left for a test's last words, and for what it cleans up.
	toSayIt = 20 * time.Second
)

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

// Until looks until ok returns true. After Limit it ends the test, which then says what never came true, and what every goroutine waits
// for meanwhile: what fails once in a thousand runs has to tell its cause then.
func Until(t TB, what string, ok func() bool) {
	t.Helper()
	if limit := Limit(); !For(limit, ok) {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2) // A Builder returns no error.
		t.Fatalf("not within %v: %s\n%s", limit, what, stacks.String())
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
