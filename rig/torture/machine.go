//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// machine is what a run got from the machine, and used of it. Times of two runs can be compared only with these.
type machine struct {
	commits []time.Duration  // of a transaction with nothing but a COMMIT, between the faults
	memory  map[string]int64 // bytes that one process had resident at most, by role
}

// measure is called between two faults, when everything works. Memory has no limit: if an answer is cut within a frame, pgx
// may read any four bytes as a length, and allocate that, up to 1 GiB.
func (r *run) measure(ctx context.Context) error {
	began := time.Now()
	if _, err := r.admin.Exec(ctx, "select pg_logical_emit_message(true, 'torture', 'a commit that is flushed')"); err != nil {
		return fmt.Errorf("measure a commit: %w", err)
	}
	m := &r.report.machine
	m.commits = append(m.commits, time.Since(began))
	if m.memory == nil {
		m.memory = map[string]int64{}
	}
	for _, role := range []string{roleProducer, roleRelay, roleConsumer, rolePerson} {
		for _, p := range r.processes(role) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
			if err != nil { // It has ended, and is asked for elsewhere.
				continue
			}
			bytes, err := peakMemory(string(status))
			if err != nil {
				return fmt.Errorf("memory of %s: %w", p, err)
			}
			m.memory[role] = max(m.memory[role], bytes)
		}
	}
	return nil
}

// peakMemory reads the bytes that a process had resident at most: VmHWM of proc_pid_status(5).
func peakMemory(status string) (int64, error) {
	for lines := bufio.NewScanner(strings.NewReader(status)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kibibytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			return kibibytes << 10, err
		}
	}
	return 0, fmt.Errorf("no line VmHWM in %q", status)
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<19)>>20) }

// String is a line of the report; "" if nothing was measured.
func (m machine) String() string {
	if len(m.commits) == 0 {
		return ""
	}
	var most []string
	for _, role := range slices.Sorted(maps.Keys(m.memory)) {
		most = append(most, fmt.Sprintf("a %s %s", role, mebibytes(m.memory[role])))
	}
	return fmt.Sprintf("a COMMIT between faults took p50 %.1f ms, at most %.1f ms; resident at most: %s",
		millis(median(m.commits)), millis(slices.Max(m.commits)), strings.Join(most, ", "))
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
