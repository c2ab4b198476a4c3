package kafkatest

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/servers"
)

func TestSkip_ATestWithoutKafkaIsSkippedOrFails(t *testing.T) {
	cause := servers.Missing("no engine")
	t.Setenv("REQUIRE_SERVICES", "")
	v := ending.Of(t, func(t testing.TB) { need(t, cause) })
	if !strings.Contains(v.Skipped, "start Docker: no engine") || v.Failed != "" {
		t.Errorf("not required: %+v", v)
	}
	t.Setenv("REQUIRE_SERVICES", "1")
	v = ending.Of(t, func(t testing.TB) { need(t, cause) })
	if !strings.Contains(v.Failed, "no engine") || v.Skipped != "" {
		t.Errorf("required: %+v", v)
	}
}

func TestSkip_ANamedServerThatDoesNotAnswerIsAFailure(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_KAFKA_BROKERS", "127.0.0.1:1")
	v := ending.Of(t, func(t testing.TB) { New(t) })
	if !strings.Contains(v.Failed, "HOLDFAST_TEST_KAFKA_BROKERS") {
		t.Errorf("it ended with %+v", v)
	}
}
