//go:build linux

package main

import (
	"os/exec"
	"strings"
	"testing"
)

// begun is a process that is no part, watched as one.
func begun(t *testing.T, script string) *process {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p := watch(part{Actor: "relay/0"}, cmd, stdin)
	t.Cleanup(func() { _ = p.end() })
	return p
}

func TestProcess_AProcessThatEndedByItselfWasNotKilled(t *testing.T) {
	t.Parallel()
	c := &cast{}
	alive := begun(t, "read line")
	if err := c.kill(alive); err != nil {
		t.Errorf("one that ran: %v", err)
	}
	if dead := c.killed(); len(dead) != 1 || dead[alive.who()].IsZero() {
		t.Errorf("killed are %v", dead)
	}
	for _, script := range []string{"exit 0", "exit 2", "kill -9 $$"} {
		crashed := begun(t, script)
		<-crashed.done
		if err := c.kill(crashed); err == nil || !strings.Contains(err.Error(), "relay/0") {
			t.Errorf("%s: killing it says %v", script, err)
		}
	}
	if dead := c.killed(); len(dead) != 1 {
		t.Errorf("killed are %v", dead)
	}
}

func TestProcess_AProcessThatEndedByItselfWasNotStopped(t *testing.T) {
	t.Parallel()
	if err := begun(t, "read line; exit 0").quit(); err != nil {
		t.Errorf("one that ran: %v", err)
	}
	early := begun(t, "exit 0")
	<-early.done
	if err := early.quit(); err == nil {
		t.Error("one that had ended before stopped in order")
	}
}
