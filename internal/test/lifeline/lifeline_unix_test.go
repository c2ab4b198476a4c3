//go:build unix

package lifeline_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// childEnv makes the test binary be the program that dies, which names the file to write.
const childEnv = "HOLDFAST_LIFELINE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if _, err := lifeline.Attach(nil, nil, `: > "$1"`, path); err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString("attached\n")
		select {} // until killed
	}
	os.Exit(m.Run())
}

func TestLifeline_TheScriptRunsWhenTheProgramIsKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ran")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wait.Until(t, "the script runs after the program was killed", func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

func TestLifeline_TheScriptDoesNotRunAfterRelease(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ran")
	line, err := lifeline.Attach(nil, nil, `: > "$1"`, path)
	if err != nil {
		t.Fatal(err)
	}
	line.Release()
	line.Release()
	if _, err := os.Stat(path); err == nil {
		t.Error("the script ran although Release was called")
	}
}
