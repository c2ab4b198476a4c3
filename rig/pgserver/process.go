package pgserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// stopMode is how a server ends, by pg_ctl's names.
type stopMode string

const (
	// stopFast rolls back what is open, writes a checkpoint and ends.
	stopFast stopMode = "fast"
	// stopImmediate ends at once without a checkpoint; the next start recovers from the log.
	stopImmediate stopMode = "immediate"
)

// process is one run of the postmaster.
type process struct {
	cmd *exec.Cmd
	// done is closed when the postmaster has ended and was waited for.
	done chan struct{}
}

// spawn starts cmd and waits for it in a goroutine of its own.
//
// The goroutine keeps its OS thread for as long as the child lives. On Linux the parent death
// signal is tied to the thread that forked, not to the process: on a shared thread the server
// would be shot whenever the Go runtime lets that thread go, which it does when some other
// goroutine locks it and ends.
func spawn(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log; only that it ended matters here
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// running tells whether the postmaster has not ended yet.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// output runs one of PostgreSQL's programs to its end as the account, and returns what it
// printed. extra are environment variables. The thread is kept for the reason that spawn gives.
func (a *account) output(ctx context.Context, dir string, extra []string, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(childEnv(), extra...)
	cmd.WaitDelay = time.Second // after a time-out a grandchild may hold the output open
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	a.prepare(cmd)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	err := <-done
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w\n%s", path, err, out)
	}
	return out.Bytes(), nil
}

// childEnv is our environment without what would talk PostgreSQL's programs into another server,
// and in the language that launch reads the log in.
func childEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(line string) bool {
		return strings.HasPrefix(line, "PG") || strings.HasPrefix(line, "LC_") || strings.HasPrefix(line, "LANG")
	})
	return append(env, "LC_ALL=C")
}
