//go:build linux

package torture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestEvidenceStaysWhereSomethingIsWrong(t *testing.T) {
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

func TestAFaultThatHitNothingIsNotCountedAsMade(t *testing.T) {
	t.Parallel()
	r := &Report{faults: []fault{{name: "slow"}, {name: "reset"}, {name: "cut"}}, made: []made{
		{name: "slow", held: time.Second}, {name: "slow", missed: true, beside: true}, {name: "reset", missed: true}}}
	var lines []string
	for line := range strings.Lines(r.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for i, want := range []string{"slow 1 1.0s 0.0s 0.0s made, never hit: 1", "reset 0 made, never hit: 1", "cut 0 not drawn", "",
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
