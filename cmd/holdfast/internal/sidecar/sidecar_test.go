package sidecar

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/probe"
)

func TestSidecar_AProbeIsToldTheWorstOfItsDatabases(t *testing.T) {
	well, slow, dead := probe.Health{Live: true, Ready: true}, probe.Health{Live: true, Reasons: []string{"slow"}}, probe.Health{Reasons: []string{"dead"}}
	for _, c := range []struct {
		name        string
		of          map[string]probe.Health
		stopping    bool
		live, ready bool
	}{
		{"all are well", map[string]probe.Health{"a": well, "b": well}, false, true, true},
		{"one is not ready", map[string]probe.Health{"a": well, "b": slow}, false, true, false},
		{"one is dead", map[string]probe.Health{"a": dead, "b": well}, false, false, false},
		{"it is stopping", map[string]probe.Health{"a": well}, true, true, false},
	} {
		if live, ready := judgeLive(c.of), judgeReady(c.of, c.stopping); live.Well != c.live || ready.Well != c.ready || len(live.Databases) != len(c.of) {
			t.Errorf("%s: %+v, %+v", c.name, live, ready)
		}
	}
}

func TestSidecar_TheRelayOfADatabaseIsStartedAgainMoreAndMoreRarely(t *testing.T) {
	ends := 0
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		var pause time.Duration
		if pause, ends = restartPause(ends, time.Second); pause != want*time.Second {
			t.Errorf("the pause is %s, want %ds", pause, want)
		}
	}
	if pause, ends := restartPause(ends, time.Hour); pause != time.Second || ends != 1 {
		t.Errorf("after an hour the pause is %s", pause)
	}
	if pause, _ := restartPause(1000, time.Second); pause != time.Minute {
		t.Errorf("after a thousand ends the pause is %s", pause)
	}
}
