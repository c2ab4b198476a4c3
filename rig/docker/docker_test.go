package docker

import (
	"strings"
	"testing"
)

func TestDocker_OnlyHostsOfThisMachineAreTaken(t *testing.T) {
	t.Parallel()
	for host, ok := range map[string]bool{
		"127.0.0.1":   true,
		"127.1.2.3":   true,
		"::1":         true,
		"localhost":   true,
		"172.17.0.1":  false,
		"10.0.0.1":    false,
		"example.com": false,
		"":            false,
	} {
		if err := checkLoopback(host); (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
	}
}

// testcontainers-go would take another engine that it finds, so a machine with one would never be tested as a bare one.
func TestDocker_TheEngineThatIsNamedIsTakenOrNone(t *testing.T) {
	t.Setenv(engineVar, "unix:///nowhere/docker.sock")
	if err := named(); err == nil || !strings.Contains(err.Error(), "unset the variable") {
		t.Errorf("an engine that does not answer: %v", err)
	}
	t.Setenv(engineVar, "")
	if err := named(); err != nil {
		t.Errorf("no engine is named: %v", err)
	}
}
