package pgtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// hasExamples says that this binary has Examples that need a server.
var hasExamples atomic.Bool

// Example stands for the test where an Example needs one, because an Example has no testing.TB. A failure panics, which
// fails the Example. Main cleans up after the last of them. Call Example before Main, from a package's variable: Main
// then skips every Example where no server is to be had, as an Example cannot skip itself.
func Example() testing.TB {
	hasExamples.Store(true)
	return &exampleTest
}

var exampleTest standIn

// standIn is the part of testing.TB that making a database asks for. Examples run one at a time.
type standIn struct {
	testing.TB
	cleanups []func()
}

func (*standIn) Helper()                           {}
func (*standIn) Context() context.Context          { return context.Background() }
func (s *standIn) Cleanup(f func())                { s.cleanups = append(s.cleanups, f) }
func (*standIn) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*standIn) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*standIn) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*standIn) Skipf(format string, args ...any)  { panic(fmt.Sprintf(format, args...)) }

func (s *standIn) cleanup() {
	for len(s.cleanups) > 0 {
		last := s.cleanups[len(s.cleanups)-1]
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		last()
	}
}

// skipExamples skips the Examples of this binary where no server is to be had and skipping is allowed. It starts the
// server, so it leaves a run alone that asks for tests by name.
func skipExamples() {
	flag.Parse()
	run := flag.Lookup("test.run").Value.String()
	if !hasExamples.Load() || run != "" && !strings.Contains(run, "Example") || flag.Lookup("test.list").Value.String() != "" {
		return
	}
	_, err := best.Get(startBest)
	if err == nil || !skip.Allowed() {
		return
	}
	fmt.Fprintf(os.Stderr, "examples are skipped: they need PostgreSQL: %v\n", err)
	skipped := flag.Lookup("test.skip").Value
	if err := skipped.Set(withoutExamples(skipped.String())); err != nil {
		panic(err)
	}
}

// withoutExamples adds the Examples to a pattern of -skip.
func withoutExamples(pattern string) string {
	if pattern == "" {
		return "^Example"
	}
	return pattern + "|^Example"
}
