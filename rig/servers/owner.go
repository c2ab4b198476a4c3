package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// ownerInterval is how often the owner is looked at.
const ownerInterval = 200 * time.Millisecond

// waitFor returns when the process has ended. It needs Linux's /proc; elsewhere it returns at once.
func waitFor(pid int) {
	began := beginOf(pid)
	for began != "" && beginOf(pid) == began {
		time.Sleep(ownerInterval)
	}
}

// beginOf is when a process began, by Linux's clock, which tells it from a later one with the same number; "" once it has
// ended, though nobody has asked for its status yet.
func beginOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// proc_pid_stat(5): the name is in parentheses, and may have some itself. The state follows, and the begin is field 22.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}
