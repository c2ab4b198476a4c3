//go:build unix

package heavy

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childVar makes the test binary a heavy one, which says when it runs.
const childVar = "HOLDFAST_HEAVY_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		Wait()
		_, _ = os.Stdout.WriteString("runs\n")
		time.Sleep(time.Minute) // sleep: it is killed before
	}
	os.Exit(m.Run())
}

func TestHeavy_OneRunsAtATimeAndTheNextWhenItIsKilled(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, runs := child(t)
	if _, err := runs.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, other := child(t)
	began := make(chan error, 1)
	go func() {
		_, err := other.ReadString('\n')
		began <- err
	}()
	select {
	case err := <-began:
		t.Fatalf("two ran at once: %v", err)
	case <-time.After(time.Second): // without the lock it takes some milliseconds
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-began; err != nil {
		t.Fatal(err)
	}
}

func child(t *testing.T) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(out)
}
