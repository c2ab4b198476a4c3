//go:build failpoints && unix

package failpoint

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if os.Getenv("FAILPOINT_CHILD") != "" { // A program of three steps.
		os.Stderr.WriteString("one ")
		Hit(RelaySaving)
		os.Stderr.WriteString("two ")
		Hit(RelaySaving)
		os.Stderr.WriteString("three ")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestOn_TaggedEachKindEndsTheProcessAsItSays(t *testing.T) {
	for _, c := range []struct {
		order, said string
		ended       func(s syscall.WaitStatus) bool
	}{
		{"", "one two three ", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 0 }},
		{"relay.saved=kill", "one two three ", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 0 }},
		{"relay.saving=kill", "one \nfailpoint relay.saving: kill\n", func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == syscall.SIGKILL }},
		{"relay.saving:2=kill", "one two \nfailpoint relay.saving: kill\n", func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == syscall.SIGKILL }},
		{"relay.saving=stall", "one \nfailpoint relay.saving: stall\n", func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == syscall.SIGKILL }},
		{"relay.saving=stop", "one \nfailpoint relay.saving: stop\n", func(s syscall.WaitStatus) bool { return s.Signaled() && s.Signal() == syscall.SIGTERM }},
		{"relay.saving=panic", "one \nfailpoint relay.saving: panic\npanic: failpoint relay.saving", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 2 }},
		{"relay.nowhere=kill", "panic: ", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 2 }},
		{"relay.saving:0=kill", "panic: ", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 2 }},
		{"relay.saving=explode", "panic: ", func(s syscall.WaitStatus) bool { return s.Exited() && s.ExitStatus() == 2 }},
	} {
		cmd := child(c.order)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !c.ended(status) || !strings.HasPrefix(string(out), c.said) {
			t.Errorf("%q: it said %.200q and ended with status %v", c.order, out, cmd.ProcessState)
		}
	}
}

func TestOn_TaggedAFrozenProcessGoesOnWhenItIsThawed(t *testing.T) {
	cmd := child("relay.saving=freeze")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it is not stopped: %v, %v", status, err)
	}
	time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || said.String() != "one \nfailpoint relay.saving: freeze\ntwo three " {
		t.Errorf("it said %q, and ended: %v", &said, err)
	}
}

func TestOn_TaggedTheListIsThatOfTheConstants(t *testing.T) {
	points := readPoints(t)
	all := Declared()
	if len(all) != len(points) {
		t.Fatalf("%d points are listed, %d are declared", len(all), len(points))
	}
	for i, d := range all {
		if got, want := (declared{d.Name, string(d.Point), d.Before, d.After}), points[i]; got != want {
			t.Errorf("listed is %v, declared %v", got, want)
		}
	}
}

func child(order string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1", Var+"="+order)
	return cmd
}
