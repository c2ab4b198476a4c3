//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

func TestReport_EvidenceStaysWhereSomethingIsWrong(t *testing.T) {
	t.Parallel()
	for _, troubles := range [][]string{nil, {"relay/0 does not stop"}} {
		r := &Report{troubles: troubles, made: []made{{name: "kill-relay"}}}
		r.Options.Dir = filepath.Join(t.TempDir(), "run")
		if err := os.Mkdir(r.Options.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dir := r.Options.Dir
		r.tidy()
		if _, err := os.Stat(dir); (err == nil) != (len(troubles) > 0) {
			t.Errorf("troubles are %q: the folder says %v", troubles, err)
		}
	}
}

func TestReport_TheReportSaysWhetherTheRunHoldsAndWhyNot(t *testing.T) {
	t.Parallel()
	lastWords := func(r *Report) (table, word string) {
		lines := strings.Split(strings.TrimSpace(r.String()), "\n")
		return strings.Join(strings.Fields(lines[1]), " "), lines[len(lines)-2]
	}
	r := &Report{faults: []fault{{name: "kill"}}, made: []made{{name: "kill", flowing: 500 * time.Millisecond, recovered: time.Second}, {name: "kill", flowing: time.Second, recovered: 2 * time.Second}}}
	if table, word := lastWords(r); table != "kill 2 0.0s 1.0s 1.0s 2.0s 2.0s" || word != "the run holds" {
		t.Errorf("it says %q and %q", table, word)
	}
	r.made[0].flowing, r.made[0].recovered = never, never
	if table, _ := lastWords(r); table != "kill 2 0.0s NEVER NEVER NEVER NEVER" {
		t.Errorf("of a recovery that did not come it says %q", table)
	}
	r.troubles = []string{"relay/0 does not stop"}
	r.Verdict.Findings = []oracle.Finding{{Oracle: oracle.NoLoss, Kind: oracle.Lost, Count: 1}}
	_, word := lastWords(r)
	for _, want := range []string{"DOES NOT HOLD", "O1", "1 troubles"} {
		if !strings.Contains(word, want) {
			t.Errorf("%q does not say %q", word, want)
		}
	}
	r.made = nil
	if _, word := lastWords(r); !strings.Contains(word, "no fault hit anything") {
		t.Errorf("%q does not say that nothing was made", word)
	}
}

func TestReport_ASeedDrawsTheSameForTheSameThingWhateverElseWasDrawn(t *testing.T) {
	t.Parallel()
	first := drawn(7, "consumer/0", 1).Uint64()
	if drawn(7, "consumer/0", 1).Uint64() != first {
		t.Error("it draws another number")
	}
	for name, other := range map[string]uint64{"seed": drawn(8, "consumer/0", 1).Uint64(), "actor": drawn(7, "consumer/1", 1).Uint64(), "start": drawn(7, "consumer/0", 2).Uint64()} {
		if other == first {
			t.Errorf("another %s draws the same", name)
		}
	}
	c := &cast{}
	if a, b, other := c.startsOf("relay/0"), c.startsOf("relay/0"), c.startsOf("relay/1"); a != 0 || b != 1 || other != 0 {
		t.Errorf("starts are counted as %d, %d and %d", a, b, other)
	}
}

func TestReport_AFolderThatHasSomethingInItIsRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "run")
	for range 2 { // It is made, and found empty.
		if err := emptyFolder(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "relay-0.history"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "relay-0.history") {
		t.Errorf("another run's folder: %v", err)
	}
}

func TestReport_AFaultThatHitNothingIsNotCountedAsMade(t *testing.T) {
	t.Parallel()
	r := &Report{faults: []fault{{name: "slow"}, {name: "reset"}, {name: "cut"}}, made: []made{
		{name: "slow", held: time.Second}, {name: "slow", missed: true, beside: true}, {name: "reset", missed: true}}}
	var lines []string
	for line := range strings.Lines(r.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for i, want := range []string{"slow 1 1.0s 0.0s 0.0s 0.0s 0.0s made, never hit: 1", "reset 0 made, never hit: 1", "cut 0 not drawn", "",
		"1 faults, 0 of them with a process killed beside; 2 more made that never hit; 0.0s"} {
		if lines[1+i] != want {
			t.Errorf("line %d is %q, want %q", 1+i, lines[1+i], want)
		}
	}
	if !r.Holds() {
		t.Error("it does not hold, although a fault hit")
	}
	r.made = r.made[1:]
	if r.Holds() {
		t.Error("it holds, although no fault hit anything")
	}
}
