//go:build unix

package pgtest

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// bouncerChild makes the test binary be the process that is killed, and names the server to stand before.
const bouncerChild = "HOLDFAST_BOUNCER_CHILD"

func TestABouncerEndsWhenItsProcessIsKilled(t *testing.T) {
	if dsn := os.Getenv(bouncerChild); dsn != "" {
		through, err := url.Parse(Bouncer(t, &DB{DSN: dsn}))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(through.Host)
		select {} // until killed
	}
	t.Parallel()
	db := New(t)
	Bouncer(t, db) // skips where there is none
	dir, err := os.MkdirTemp("", "holdfast-killed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // The bouncer's user enters it.
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), bouncerChild+"="+db.DSN, "TMPDIR="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	address, err := bufio.NewReader(out).ReadString('\n')
	address = strings.TrimSpace(address)
	if _, _, notOne := net.SplitHostPort(address); err != nil || notOne != nil {
		t.Fatalf("the child said %q, %v", address, err)
	}
	ended := func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		left, _ := os.ReadDir(dir)
		return err != nil && len(left) == 0
	}
	if ended() {
		t.Fatal("it did not run")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !ended(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it runs, or its folder is there, 30 s after its process was killed")
		}
	}
}
