package pgtest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// verdict is a testing.TB that records how a test ended instead of ending it.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Helper() {}

func (v *verdict) Skipf(format string, args ...any) {
	v.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge runs f as a test would run and returns how it ended.
func judge(f func(testing.TB)) *verdict {
	v := &verdict{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(v)
	}()
	<-done
	return v
}

func (v *verdict) Fatal(args ...any) { v.Fatalf("%s", fmt.Sprint(args...)) }

func (v *verdict) Errorf(format string, args ...any) { v.failed = fmt.Sprintf(format, args...) }

func TestATestWithoutAServerIsSkippedOrFailsWhereServicesAreRequired(t *testing.T) {
	cause := errors.New("no binaries")
	t.Setenv("REQUIRE_SERVICES", "")
	v := judge(func(t testing.TB) { unavailable(t, cause) })
	if !strings.Contains(v.skipped, "start Docker: no binaries") || v.failed != "" {
		t.Errorf("not required: %+v", v)
	}
	t.Setenv("REQUIRE_SERVICES", "1")
	v = judge(func(t testing.TB) { unavailable(t, cause) })
	if !strings.Contains(v.failed, "no binaries") || v.skipped != "" {
		t.Errorf("required: %+v", v)
	}
}

func TestAnAddressThatIsNoURLIsRefusedWithAnExample(t *testing.T) {
	t.Parallel()
	v := judge(func(t testing.TB) { On(t, "host=127.0.0.1 dbname=x") })
	if !strings.Contains(v.failed, "postgres://") {
		t.Errorf("it ended with %+v", v)
	}
}

func TestAConnectionThatIsNotGivenBackFailsTheTest(t *testing.T) {
	t.Parallel()
	pool := New(t).Pool
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v := judge(func(t testing.TB) { closePool(t, pool, time.Millisecond) })
	if !strings.Contains(v.failed, "1 connections were never given back") {
		t.Errorf("it ended with %+v", v)
	}
	conn.Release()
}
