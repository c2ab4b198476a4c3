//go:build linux

package main

import (
	"os"
	"testing"
	"time"
)

func TestPatience_ASlowMachineIsWaitedForAndAHungOneIsNot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		slower float64
		waited time.Duration
	}{
		{"a machine with time, or on which everything hangs", 1, time.Minute},
		{"one that nobody can tell of", 0, time.Minute},
		{"one with three times as much to do", 3, 3 * time.Minute},
		{"one with no end to it", 100, mostPatience * time.Minute},
	} {
		now := time.Unix(0, 0)
		p := newPatience(time.Minute, now)
		for !p.over(now, c.slower) {
			now = now.Add(25 * time.Millisecond)
		}
		if got := p.waited(); got < c.waited || got > c.waited+50*time.Millisecond {
			t.Errorf("%s: waited %s, want %s", c.name, got, c.waited)
		}
	}
}

func TestPatience_HowManyThreadsWantToRunIsRead(t *testing.T) {
	t.Parallel()
	if n := wantToRun([]byte("cpu 1 2\nprocesses 9\nprocs_running 68\nprocs_blocked 3\n")); n != 68 {
		t.Errorf("it reads %d", n)
	}
	if n := wantToRun([]byte("cpu 1 2\n")); n != 0 {
		t.Errorf("it reads %d of nothing", n)
	}
	if text, err := os.ReadFile("/proc/stat"); err != nil || wantToRun(text) == 0 {
		t.Errorf("this machine does not tell: %v", err) // this test runs
	}
}
