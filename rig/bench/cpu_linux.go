package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// treeCPU is the CPU time that a process, its children and those it has waited for have used so far: a Postgres with all
// its backends. On a shared machine it says more than the clock.
func treeCPU(root int) time.Duration {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var ticks int64
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if s, ok := readStat(pid); ok && (pid == root || s.parent == root) {
			ticks += s.own
			if pid == root {
				ticks += s.waited
			}
		}
	}
	return time.Duration(ticks) * time.Second / 100 // USER_HZ is 100 wherever Go runs
}

// parentOf is the postmaster of a backend; 0 if there is no such process here.
func parentOf(pid int) int {
	s, _ := readStat(pid)
	return s.parent
}

type stat struct {
	parent      int
	own, waited int64 // clock ticks, user and system
}

func readStat(pid int) (stat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, false
	}
	// The name in parentheses may have any character; after the last parenthesis there are only numbers.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return stat{}, false
	}
	at := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	return stat{parent: int(at(1)), own: at(11) + at(12), waited: at(13) + at(14)}, true
}
