//go:build unix

package bouncer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/bouncer"
)

// parentEnv makes the test binary be the program that starts a PgBouncer and is killed; its value is what to do with it.
const parentEnv = "HOLDFAST_BOUNCER_PARENT"

func TestMain(m *testing.M) {
	if state := os.Getenv(parentEnv); state != "" {
		s, err := bouncer.Start(context.Background(), bouncer.Options{Target: "127.0.0.1:1", User: "u"})
		if err == nil && state == "restarted" {
			err = s.Restart(context.Background())
		}
		if err == nil && state == "paused" {
			err = s.Pause()
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Dir())
		select {} // until killed
	}
	os.Exit(pgtest.Main(m))
}

func TestParent_ItEndsAndItsFolderGoesWhenTheProgramIsKilled(t *testing.T) {
	t.Parallel()
	start(t, bouncer.Options{Target: "127.0.0.1:1", User: "u"}) // skips where there is no PgBouncer
	for _, state := range []string{"running", "paused", "restarted"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), parentEnv+"="+state)
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
			text, err := os.ReadFile(filepath.Join(dir, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); err != nil {
				t.Fatalf("PgBouncer %d does not run: %v", pid, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			wait.Until(t, "PgBouncer and its folder go after the program was killed", func() bool {
				_, err := os.Stat(dir)
				return errors.Is(err, os.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
			})
		})
	}
}
