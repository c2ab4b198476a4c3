// Package ending says how a test would end, without ending the test that asks: for tests of what tests call.
package ending

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// Ending is how a test ended: "" is not so, else why. Of several reasons it is the last.
type Ending struct{ Skipped, Failed string }

// Of runs f as a test would run, with what it cleans up, and returns how it ended.
func Of(t testing.TB, f func(testing.TB)) Ending { return run(t, f).ending }

// Reports is Of for all that the test reported as wrong.
func Reports(t testing.TB, f func(testing.TB)) []string { return run(t, f).reports }

func run(t testing.TB, f func(testing.TB)) ended {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

type ended struct {
	ending  Ending
	reports []string
}

// recorder records how a test ended instead of ending it. What it does not know is done to the test that asks.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	ended    ended
	cleanups []func()
}

func (r *recorder) report(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended.ending.Failed, r.ended.reports = text, append(r.ended.reports, text)
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Error(args ...any)                 { r.report(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.report(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.report(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.mu.Lock()
	r.ended.ending.Skipped = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}
