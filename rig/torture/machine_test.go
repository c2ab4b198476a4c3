//go:build linux

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMachine_TheMemoryOfAProcessIsReadAsTheKernelTellsIt(t *testing.T) {
	t.Parallel()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if bytes, err := peakMemory(string(status)); err != nil || bytes < 1<<20 || bytes > 16<<30 {
		t.Errorf("this process had %d bytes at most: %v", bytes, err)
	}
	if bytes, err := peakMemory("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"); err != nil || bytes != 2<<20 {
		t.Errorf("2048 kB are read as %d bytes: %v", bytes, err)
	}
	for _, bad := range []string{"", "Name:\tzombie\nState:\tZ\n", "VmHWM:\tmuch kB\n"} {
		if bytes, err := peakMemory(bad); err == nil {
			t.Errorf("%q is read as %d bytes", bad, bytes)
		}
	}
}

func TestMachine_TheReportSaysWhatTheMachineGaveAndWhatTheRunTook(t *testing.T) {
	t.Parallel()
	r := &Report{machine: machine{commits: []time.Duration{5 * time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond},
		memory: map[string]int64{roleRelay: 30 << 20, roleConsumer: 41<<20 + 1}}}
	want := "a COMMIT between faults took p50 3.0 ms, at most 5.0 ms; resident at most: a consumer 41 MiB, a relay 30 MiB\n"
	if text := r.String(); !strings.Contains(text, want) {
		t.Errorf("the report is\n%s, without\n%s", text, want)
	}
	if text := (&Report{}).String(); strings.Contains(text, "COMMIT between") {
		t.Errorf("a run that measured nothing says\n%s", text)
	}
}
