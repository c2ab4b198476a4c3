// Package ending says how a test would end, without ending the test that asks: for tests of what tests call.
package ending

import (
	"fmt"
	"runtime"
	"testing"
)

// Ending is how a test ended: "" is not so, else why.
type Ending struct{ Skipped, Failed string }

// Of runs f as a test would run, with what it cleans up, and returns how it ended.
func Of(t testing.TB, f func(testing.TB)) Ending {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // of its own, because it may be ended
		defer close(done)
		f(r)
	}()
	<-done
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	return r.ending
}

// recorder records how a test ended instead of ending it. What it does not know is done to the test that asks.
type recorder struct {
	testing.TB
	ending   Ending
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Errorf(format string, args ...any) {
	r.ending.Failed = fmt.Sprintf(format, args...)
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.ending.Failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.ending.Skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
