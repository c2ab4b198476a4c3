package kafkatest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
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

func TestATestWithoutKafkaIsSkippedOrFailsWhereServicesAreRequired(t *testing.T) {
	cause := errors.New("no engine")
	t.Setenv("REQUIRE_SERVICES", "")
	v := judge(func(t testing.TB) { unavailable(t, cause) })
	if !strings.Contains(v.skipped, "start Docker: no engine") || v.failed != "" {
		t.Errorf("not required: %+v", v)
	}
	t.Setenv("REQUIRE_SERVICES", "1")
	v = judge(func(t testing.TB) { unavailable(t, cause) })
	if !strings.Contains(v.failed, "no engine") || v.skipped != "" {
		t.Errorf("required: %+v", v)
	}
}

func TestAServerThatTheVariableNamesAndThatDoesNotAnswerIsAFailure(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_KAFKA_BROKERS", "127.0.0.1:1")
	v := judge(func(t testing.TB) { New(t) })
	if !strings.Contains(v.failed, "HOLDFAST_TEST_KAFKA_BROKERS") {
		t.Errorf("it ended with %+v", v)
	}
}
