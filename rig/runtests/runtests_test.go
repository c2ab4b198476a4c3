package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// script is a go test that answers each run with events of its own.
type script struct {
	runs [][]string // the arguments of each run
	says []string   // the events of each, in the short form of events
	err  error
}

func (s *script) test(_ context.Context, args []string, json io.Writer) error {
	if len(s.runs) == len(s.says) {
		return errors.New("one run too many")
	}
	text := events(s.says[len(s.runs)])
	s.runs = append(s.runs, args)
	for len(text) > 0 { // pieces end anywhere
		n := min(7, len(text))
		_, _ = json.Write([]byte(text[:n]))
		text = text[n:]
	}
	return s.err
}

// events makes go test's events of "pass pkg Test; output pkg Test some text; fail pkg; build-fail path".
func events(short string) string {
	var text strings.Builder
	for e := range strings.SplitSeq(short, "; ") {
		words := strings.SplitN(e, " ", 4)
		words = append(words, "", "")
		switch {
		case words[0] == "build-output":
			fmt.Fprintf(&text, "{\"Action\":%q,\"ImportPath\":%q,\"Output\":\"undefined: x\\n\"}\n", words[0], words[1])
		case words[0] == "unbuilt":
			fmt.Fprintf(&text, "{\"Action\":\"fail\",\"Package\":%q,\"FailedBuild\":%q}\n", words[1], words[1])
		case words[0] == "output":
			fmt.Fprintf(&text, "{\"Action\":\"output\",\"Package\":%q,\"Test\":%q,\"Output\":%q}\n", words[1], words[2], words[3]+"\n")
		default:
			if words[2] != "" && words[0] != "run" {
				fmt.Fprintf(&text, "{\"Action\":\"run\",\"Package\":%q,\"Test\":%q}\n", words[1], words[2])
			}
			fmt.Fprintf(&text, "{\"Action\":%q,\"Package\":%q,\"Test\":%q,\"Elapsed\":2}\n", words[0], words[1], words[2])
		}
	}
	return text.String()
}

func TestRuntests_WhatFailsIsRunOnceMoreAlone(t *testing.T) {
	for _, row := range []struct {
		name string
		says []string
		ok   bool
		runs string   // the second run's arguments
		want []string // lines of the end
	}{
		{"all pass", []string{"pass p A; pass p A/sub; skip p B; pass p"}, true, "", []string{"1 passed, 0 failed, 1 skipped"}},
		{"a test that fails twice", []string{"pass p A; output p B why; fail p B/sub; fail p B; fail p", "fail p B; fail p"}, false,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m -run ^B$ p",
			[]string{"why", "FAILED: p B", "again: go test -count=1 -p 1 -parallel 1 -short -timeout 5m -run '^B$' p", "1 passed, 1 failed, 0 skipped"}},
		{"a test that fails once", []string{"pass p A; output p B why; fail p B; fail p", "pass p B; pass p"}, true,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m -run ^B$ p", []string{"why", "FLAKY: p B failed, and passed alone", "2 passed, 0 failed, 0 skipped"}},
		{"a test that is skipped when it is alone", []string{"fail p B; fail p", "skip p B; pass p"}, false,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m -run ^B$ p", []string{"FAILED: p B", "0 passed, 1 failed, 0 skipped"}},
		{"a panic, after which tests are missing", []string{"pass p A; run p B; output p B panic; fail p C; fail p", "pass p A; pass p B; pass p C; pass p"}, true,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m p", []string{"panic", "FLAKY: p failed, and passed alone"}},
		{"a package that fails after its tests", []string{"pass p A; output p  exit status 3; fail p", "pass p A; fail p"}, false,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m p", []string{"FAILED: p", "1 passed, 1 failed, 0 skipped"}},
		{"a package that never ended", []string{"pass p A", "pass p A; pass p"}, true,
			"-count=1 -p 1 -parallel 1 -short -timeout 5m p", []string{"FLAKY: p failed, and passed alone"}},
		{"a package that does not compile", []string{"build-output p; unbuilt p; pass q A; pass q"}, false, "", []string{"undefined: x", "FAILED: p", "1 passed, 1 failed, 0 skipped"}},
		{"no test at all", []string{"skip p"}, false, "", []string{"0 passed, 0 failed, 0 skipped"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var out bytes.Buffer
			s := script{says: row.says}
			ok := runner{&out, s.test}.gate(t.Context(), []string{"-short", "-timeout", "5m", "work"}, false, 0)
			if ok != row.ok {
				t.Errorf("it is %v that all is well", ok)
			}
			if len(s.runs) != len(row.says) || len(s.runs) > 1 && strings.Join(s.runs[1], " ") != row.runs {
				t.Errorf("it ran %q, want the second to be %q", s.runs, row.runs)
			}
			for _, want := range row.want {
				if !strings.Contains("\n"+out.String(), "\n"+want+"\n") {
					t.Errorf("it does not say %q:\n%s", want, &out)
				}
			}
		})
	}
}

func TestRuntests_ManyFailuresAndDrawnSeedsAreNotRunAgain(t *testing.T) {
	var many []string
	for i := range mostAgain + 1 {
		many = append(many, fmt.Sprint("fail p T", i))
	}
	var out bytes.Buffer
	s := script{says: []string{strings.Join(append(many, "fail p"), "; ")}}
	if (runner{&out, s.test}).gate(t.Context(), []string{"work"}, false, 0) || len(s.runs) != 1 {
		t.Errorf("it ran %d times", len(s.runs))
	}
	s = script{says: []string{"fail p A; fail p"}}
	if (runner{&out, s.test}).gate(t.Context(), []string{"work"}, true, 0) || len(s.runs) != 1 {
		t.Errorf("with -once it ran %d times", len(s.runs))
	}
}

func TestRuntests_AGoTestThatCannotRunIsAFailure(t *testing.T) {
	var out bytes.Buffer
	s := script{says: []string{"pass p A; pass p"}, err: errors.New("signal: killed")}
	if (runner{&out, s.test}).gate(t.Context(), []string{"work"}, false, 0) || !strings.Contains(out.String(), "signal: killed") {
		t.Errorf("it says\n%s", &out)
	}
}

func TestRuntests_EachFailureOfManyRunsIsCounted(t *testing.T) {
	var out bytes.Buffer
	s := script{says: []string{"pass p A; fail p B; fail p", "pass p A; pass p B; pass p", "fail p A; fail p B; fail p"}}
	if (runner{&out, s.test}).steady(t.Context(), 3, []string{"-short", "./..."}) {
		t.Error("all is well, it says")
	}
	for _, want := range []string{"failed in 2 of 3 runs: p B", "failed in 1 of 3 runs: p A", "3 runs", "3 passed, 3 failed, 0 skipped"} {
		if !strings.Contains("\n"+out.String(), "\n"+want+"\n") {
			t.Errorf("it does not say %q:\n%s", want, &out)
		}
	}
	s = script{says: []string{"pass p A; pass p", "pass p A; pass p"}}
	if !(runner{&out, s.test}).steady(t.Context(), 2, []string{"./..."}) {
		t.Error("two runs without a failure are not steady")
	}
}

func TestRuntests_TheArgumentsOfTheTestsStayAtTheEnd(t *testing.T) {
	got := strings.Join(failure{pkg: "p", test: "A"}.alone([]string{"-run", "X", "-tags=cluster", "./p", "-args", "-sim.for", "10m"}), " ")
	if want := "-count=1 -p 1 -parallel 1 -tags=cluster -run ^A$ p -args -sim.for 10m"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
