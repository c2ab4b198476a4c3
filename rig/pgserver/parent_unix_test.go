//go:build unix

package pgserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// parentEnv makes the test binary be the program that starts a server and is killed.
const parentEnv = "HOLDFAST_PGSERVER_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) != "" {
		s, err := pgserver.Start(context.Background(), pgserver.Options{Settings: pgserver.NoSync()})
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Dir())
		select {} // until killed
	}
	os.Exit(m.Run())
}

func TestParent_TheServerAndItsFolderGoWhenTheProgramIsKilled(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	t.Parallel()
	start(t, pgserver.Options{Settings: pgserver.NoSync()}) // skips where there is no PostgreSQL
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), parentEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir := strings.TrimSpace(line)
	pid := postmaster(t, dir)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the postmaster %d does not run: %v", pid, err)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	wait.Until(t, "the postmaster ends", func() bool {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
	wait.Until(t, "the folder is removed", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

// The parent death signal is tied to the thread that forked. If that thread were shared, the
// runtime would end it together with a goroutine that ends while locked to it, and the kernel
// would shoot the server.
func TestParent_TheServerOutlivesTheThreadsOfOtherGoroutines(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Settings: pgserver.NoSync()})
	done := make(chan struct{})
	for range 200 {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			done <- struct{}{}
		}()
	}
	for range 200 {
		<-done
	}
	value(t, s, "select 'alive'")
}

func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
